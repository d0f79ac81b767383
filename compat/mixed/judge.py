"""What the members of a mixed group say, and what may not be found in it.

A member says one event per line: KIND MICROSECONDS REST.
  own GENERATION PARTITIONS [MEMBER_ID]   what it owns from now on (with its id: it was given something)
  lost GENERATION PARTITIONS              likewise, and it found out that it had been put out of the group
  got PARTITION FIRST LAST COUNT          it has read these records
  commit GENERATION PARTITION:NEXT,...    the broker has taken these positions
  refused GENERATION WHY                  the broker has not
  bye                                     it has left in order
PARTITIONS are numbers with commas, or "-". With KIP-848 the generation is the member's epoch.

judge() finds: two owners at one time or in one generation, a record that nobody has read or that was passed over, a
read without owning, a position that went back behind a commit, an accepted commit of an old generation, a member put
out for no reason. A paused member does not know that it owns nothing any more; what it says it owns does not count
from the pause to its next own or lost.
"""
import collections

Event = collections.namedtuple("Event", "time kind rest")


class Member:
    """The log of one member, and what was done to it (all times in microseconds)."""

    def __init__(self, name):
        self.name, self.events, self.killed, self.pauses, self.leaving = name, [], None, [], float("inf")

    def hear(self, line):
        kind, time, *rest = line.split()
        self.events.append(Event(int(time), kind, rest))

    def last(self, *kinds):
        return next((e for e in reversed(self.events) if e.kind in kinds), None)

    def owned(self):
        e = self.last("own", "lost")
        return partitions(e.rest[1]) if e else set()

    def id(self):
        e = next((e for e in reversed(self.events) if e.kind == "own" and len(e.rest) > 2), None)
        return e.rest[2] if e else None


def partitions(text):
    return set() if text == "-" else set(map(int, text.split(",")))


def ownerships(member):
    """[(partition, from, to, generation)]; an open end is infinite."""
    marks = [(e.time, partitions(e.rest[1]), int(e.rest[0])) for e in member.events if e.kind in ("own", "lost")]
    marks += [(e.time, set(), -1) for e in member.events if e.kind == "bye"]
    marks += [(start, set(), -1) for start, _ in member.pauses]
    if member.killed:
        marks = [m for m in marks if m[0] < member.killed] + [(member.killed, set(), -1)]
    marks.sort(key=lambda m: m[0])
    found, since = [], {}
    for time, owned, generation in marks:
        for p in list(since):
            if p not in owned:
                found.append((p, *since.pop(p)[:1], time, generation))
        for p in owned:
            since.setdefault(p, (time, generation))
    found += [(p, start, float("inf"), generation) for p, (start, generation) in since.items()]
    return found


def two_owners(members):
    spans = collections.defaultdict(list)
    for m in members:
        for p, start, end, _ in ownerships(m):
            spans[p].append((start, end, m.name))
    for p, list_ in sorted(spans.items()):
        list_.sort()
        for a, b in zip(list_, list_[1:]):
            if a[2] != b[2] and b[0] < a[1]:
                over = "for %.3f s" % ((min(a[1], b[1]) - b[0]) / 1e6) if min(a[1], b[1]) < float("inf") else "to the end"
                yield "partition %d is owned by %s and %s %s" % (p, a[2], b[2], over)


def two_in_a_generation(members):
    owner = {}
    for m in members:
        for e in m.events:
            if e.kind == "own" and int(e.rest[0]) >= 0:
                for p in partitions(e.rest[1]):
                    other = owner.setdefault((int(e.rest[0]), p), m.name)
                    if other != m.name:
                        yield "generation %s: partition %d has %s and %s" % (e.rest[0], p, other, m.name)


def unread(members, ends):
    """Records below the ends that nobody has got."""
    spans = collections.defaultdict(list)
    for m in members:
        for e in m.events:
            if e.kind == "got":
                p, first, last, count = map(int, e.rest)
                if count != last - first + 1:
                    yield "%s got %d records for offsets %d to %d of partition %d" % (m.name, count, first, last, p)
                spans[p].append((first, last))
    for p, end in sorted(ends.items()):
        next_ = 0
        for first, last in sorted(spans[p]):
            if first > next_:
                yield "nobody got offsets %d to %d of partition %d" % (next_, first - 1, p)
            next_ = max(next_, last + 1)
        if next_ < end:
            yield "nobody got offsets %d to %d of partition %d" % (next_, end - 1, p)


def reads(members):
    """Order within each ownership, and where it begins: at or behind the last commit before it."""
    commits = collections.defaultdict(list)
    for m in members:
        for e in m.events:
            if e.kind == "commit":
                for pair in e.rest[1].split(","):
                    p, n = map(int, pair.split(":"))
                    commits[p].append((e.time, n))
    for m in members:
        position, since = {}, {}
        for e in m.events:
            if e.kind in ("own", "lost"):
                now = partitions(e.rest[1])
                for p in set(since) - now:
                    del since[p], position[p]
                for p in now - set(since):
                    since[p], position[p] = e.time, None
            elif e.kind == "got":
                p, first, last, _ = map(int, e.rest)
                if p not in since:
                    yield "%s reads partition %d, which it does not own" % (m.name, p)
                    continue
                if position[p] is None:
                    done = max((n for t, n in commits[p] if t < since[p]), default=0)
                    if first < done:
                        yield "%s begins partition %d at %d, though %d was committed" % (m.name, p, first, done)
                elif first != position[p]:
                    yield "%s goes from %d to %d in partition %d" % (m.name, position[p], first, p)
                position[p] = last + 1


def old_commits(members):
    """Positions taken from a generation that was over for that partition. The answer to a commit that was on its way
    when its member was paused is heard late; so the first after a pause does not count."""
    given = collections.defaultdict(list)
    for m in members:
        for e in m.events:
            if e.kind == "own" and int(e.rest[0]) >= 0:
                for p in partitions(e.rest[1]):
                    given[p].append((e.time, int(e.rest[0]), m.name))
    for m in members:
        resumed = sorted(end for _, end in m.pauses)
        for e in (e for e in m.events if e.kind == "commit"):
            if resumed and e.time > resumed[0]:
                resumed.pop(0)
                continue
            for pair in e.rest[1].split(","):
                p = int(pair.split(":")[0])
                for time, generation, other in given[p]:
                    if other != m.name and time < e.time and generation > int(e.rest[0]) >= 0:
                        yield "%s commits partition %d in generation %s, which %s has since %d" % (
                            m.name, p, e.rest[0], other, generation)


def put_out(members):
    for m in members:
        if not m.pauses:
            for e in m.events:
                # Java calls what it gives up "lost" when it is closed in the middle of a rebalance.
                if e.kind == "lost" and e.time < m.leaving:
                    yield "%s was put out of the group (generation %s)" % (m.name, e.rest[0])
                if e.kind == "error":
                    yield "%s: %s" % (m.name, " ".join(e.rest))


def judge(members, ends, classic):
    """Everything that may not be, one text each."""
    found = list(two_owners(members)) + list(unread(members, ends)) + list(reads(members)) + list(put_out(members))
    if classic:                        # epochs of KIP-848 members are their own, and say nothing about others'
        found += list(two_in_a_generation(members)) + list(old_commits(members))
    return found


def self_test():
    """Every fault that judge() looks for, put into an innocent log, is found; the innocent log is innocent."""
    def members(**logs):
        made = []
        for name, lines in logs.items():
            m = Member(name)
            for line in lines.split("; "):
                m.hear(line)
            made.append(m)
        return made
    a = "own 10 1 0,1 A; got 20 0 0 4 5; commit 21 1 0:5; own 30 1 -; own 40 2 0 A; got 50 0 5 9 5; commit 51 2 0:10"
    b = "own 40 2 1 B; got 50 1 0 9 10; commit 51 2 1:10"
    ends = {0: 10, 1: 10}
    assert judge(members(A=a, B=b), ends, True) == [], judge(members(A=a, B=b), ends, True)
    faults = {
        "is owned by": (a, b.replace("own 40 2 1", "own 25 2 1")),
        "generation 2: partition 0": (a, b.replace("own 40 2 1", "own 40 2 0,1")),
        "nobody got": (a, b.replace("got 50 1 0 9 10", "got 50 1 0 8 9")),
        "got 9 records": (a, b.replace("0 9 10", "0 9 9")),
        "does not own": (a, b.replace("got 50 1", "got 39 0 0 1 2; got 50 1").replace("own 40", "own 38 1 -; own 40")),
        "goes from": (a.replace("got 50 0 5 9 5", "got 50 0 5 6 2; got 50 0 5 9 5"), b),
        "though 5 was committed": (a.replace("got 50 0 5 9 5", "got 50 0 4 9 6"), b),
        "has since 2": (a + "; commit 60 1 1:3", b),
        "put out": (a, b + "; lost 70 2 -"),
    }
    for text, logs in faults.items():
        found = judge(members(A=logs[0], B=logs[1]), ends, True)
        assert any(text in f for f in found), (text, found)
    paused = members(A=a, B=b.replace("own 40 2 1", "own 25 2 1"))
    paused[0].pauses.append((22, 29))
    assert not any("is owned by" in f for f in judge(paused, ends, True)), "a pause excuses"
    leaving = members(A=a, B=b + "; lost 70 2 -")
    leaving[1].leaving = 69
    assert judge(leaving, ends, True) == [], "who was told to leave is not put out"
    return len(faults)
