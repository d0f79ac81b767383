// A member of a mixed consumer group, as franz-go or as sarama, for suite-mixed.
//
// It consumes, commits what it has consumed (the last position of each read, at once) and says on standard output
// what it owns and does, one event per line (see mixed/judge.py). It leaves in order when its standard input ends.
//
// MIXED_BREAK makes it lie, to show that the suite can fail: "assignor" (the leader of range gives one partition to
// two members), "skip" (a commit passes over ten records), "silent" (revoked partitions are read on).
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var (
	lines     sync.Mutex
	breakWith = os.Getenv("MIXED_BREAK")
)

// say prints one event: its kind, the time in microseconds, and the rest.
func say(kind, format string, a ...any) {
	lines.Lock()
	defer lines.Unlock()
	fmt.Printf("%s %d %s\n", kind, time.Now().UnixMicro(), fmt.Sprintf(format, a...))
}

func die(err error) {
	say("error", "%s", strings.ReplaceAll(err.Error(), "\n", " "))
	os.Exit(1)
}

// owned is the set of partitions that this member owns.
type owned map[int32]bool

func (o owned) String() string {
	list := []int{}
	for p := range o {
		list = append(list, int(p))
	}
	sort.Ints(list)
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]")
	if text == "" {
		return "-"
	}
	return text
}

// leave is done when standard input has ended.
func leave() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx
}

func main() {
	if len(os.Args) != 7 {
		fmt.Fprintln(os.Stderr, "usage: mixed franz|sarama BOOTSTRAP GROUP TOPIC range|roundrobin|sticky|cooperative-sticky|848:NAME SESSION_MS")
		os.Exit(2)
	}
	var session int
	fmt.Sscan(os.Args[6], &session)
	run := map[string]func(string, string, string, string, time.Duration){"franz": franz, "sarama": saramaMember}[os.Args[1]]
	run(os.Args[2], os.Args[3], os.Args[4], os.Args[5], time.Duration(session)*time.Millisecond)
	say("bye", "")
}

// ---- franz-go

// twice is a range balancer that gives the first partition of everybody to the last member, too.
type twice struct{ kgo.GroupBalancer }

type twicePlan struct{ kgo.GroupMemberBalancer }

type twiceAssignment []kmsg.SyncGroupRequestGroupAssignment

func (t twice) MemberBalancer(members []kmsg.JoinGroupResponseMember) (kgo.GroupMemberBalancer, map[string]struct{}, error) {
	b, topics, err := t.GroupBalancer.MemberBalancer(members)
	return twicePlan{b}, topics, err
}

func (t twicePlan) BalanceOrError(topics map[string]int32) (kgo.IntoSyncAssignment, error) {
	plan, err := t.GroupMemberBalancer.(kgo.GroupMemberBalancerOrError).BalanceOrError(topics)
	if err != nil {
		return nil, err
	}
	all := plan.IntoSyncAssignment()
	if len(all) > 1 {
		all[len(all)-1].MemberAssignment = all[0].MemberAssignment
	}
	return twiceAssignment(all), nil
}

func (t twiceAssignment) IntoSyncAssignment() []kmsg.SyncGroupRequestGroupAssignment { return t }

func franz(bootstrap, group, topic, assignor string, session time.Duration) {
	mine, pending := owned{}, map[int32]int64{}
	var mu sync.Mutex // callbacks and the loop exclude each other already; this is for the reader of the code
	generation := func(cl *kgo.Client) int32 {
		_, generation := cl.GroupMetadata()
		return generation
	}
	commit := func(cl *kgo.Client) {
		if len(pending) == 0 {
			return
		}
		want := map[int32]kgo.EpochOffset{}
		for p, next := range pending {
			if breakWith == "skip" && next > 100 {
				next += 10
			}
			want[p] = kgo.EpochOffset{Epoch: -1, Offset: next}
		}
		before := generation(cl)
		cl.CommitOffsetsSync(context.Background(), map[string]map[int32]kgo.EpochOffset{topic: want},
			func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
				if err != nil {
					say("refused", "%d %v", before, err)
					return
				}
				var done []string
				for _, t := range answer.Topics {
					for _, p := range t.Partitions {
						if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
							say("refused", "%d %v", before, err)
							continue
						}
						done = append(done, fmt.Sprintf("%d:%d", p.Partition, pending[p.Partition]))
						delete(pending, p.Partition)
					}
				}
				if len(done) > 0 {
					say("commit", "%d %s", before, strings.Join(done, ","))
				}
			})
	}
	drop := func(kind string, commits bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, cl *kgo.Client, parts map[string][]int32) {
			mu.Lock()
			defer mu.Unlock()
			if commits {
				commit(cl)
			}
			if breakWith == "silent" {
				return
			}
			for _, p := range parts[topic] {
				delete(mine, p)
				delete(pending, p)
			}
			say(kind, "%d %s", generation(cl), mine)
		}
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(bootstrap), kgo.ClientID("mixed-franz"), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.FetchMaxWait(250 * time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, cl *kgo.Client, parts map[string][]int32) {
			mu.Lock()
			defer mu.Unlock()
			for _, p := range parts[topic] {
				mine[p] = true
			}
			id, generation := cl.GroupMetadata()
			say("own", "%d %s %s", generation, mine, id)
		}),
		kgo.OnPartitionsRevoked(drop("own", true)), kgo.OnPartitionsLost(drop("lost", false)),
	}
	balancers := map[string]kgo.GroupBalancer{"range": kgo.RangeBalancer(), "roundrobin": kgo.RoundRobinBalancer(),
		"sticky": kgo.StickyBalancer(), "cooperative-sticky": kgo.CooperativeStickyBalancer(),
		"848:range": kgo.RangeBalancer(), "848:uniform": kgo.StickyBalancer()}
	balancer := balancers[assignor]
	if breakWith == "assignor" {
		balancer = twice{balancer}
	}
	opts = append(opts, kgo.Balancers(balancer))
	if strings.HasPrefix(assignor, "848:") {
		opts = append(opts, kgo.ServerSideBalancer())
	} else {
		opts = append(opts, kgo.SessionTimeout(session), kgo.HeartbeatInterval(time.Second), kgo.RebalanceTimeout(3*session))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		die(err)
	}
	ctx := leave()
	for ctx.Err() == nil {
		poll, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		f := cl.PollRecords(poll, 200)
		cancel()
		mu.Lock()
		f.EachPartition(func(p kgo.FetchTopicPartition) {
			if n := len(p.Records); n > 0 {
				first, last := p.Records[0].Offset, p.Records[n-1].Offset
				say("got", "%d %d %d %d", p.Partition, first, last, n)
				pending[p.Partition] = last + 1
			}
		})
		commit(cl)
		mu.Unlock()
		cl.AllowRebalance()
	}
	cl.Close()
}

// ---- sarama

// handler is what sarama calls. One read is what is there at once.
type handler struct {
	session time.Duration
	topic   string
}

func (h handler) Setup(s sarama.ConsumerGroupSession) error {
	mine := owned{}
	for _, p := range s.Claims()[h.topic] {
		mine[p] = true
	}
	say("own", "%d %s %s", s.GenerationID(), mine, s.MemberID())
	return nil
}

func (h handler) Cleanup(s sarama.ConsumerGroupSession) error {
	s.Commit()
	say("own", "%d -", s.GenerationID())
	return nil
}

func (h handler) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	first, last, marked := int64(-1), int64(-1), int64(-1)
	tell := func() {
		if first >= 0 {
			say("got", "%d %d %d %d", claim.Partition(), first, last, last-first+1)
			s.MarkOffset(claim.Topic(), claim.Partition(), last+1, "")
			first, marked = -1, last
		}
	}
	committed := int64(-1)
	for {
		select {
		case m, ok := <-claim.Messages():
			if !ok {
				tell()
				return nil
			}
			if first >= 0 && m.Offset != last+1 {
				tell()
			}
			if first < 0 {
				first = m.Offset
			}
			last = m.Offset
		case <-tick.C:
			tell()
			if marked != committed {
				s.Commit()
				committed = marked
			}
		case <-s.Context().Done():
			tell()
			return nil
		}
	}
}

func saramaMember(bootstrap, group, topic, assignor string, session time.Duration) {
	c := sarama.NewConfig()
	c.Version, c.ClientID = sarama.MaxVersion, "mixed-sarama"
	c.Consumer.Offsets.Initial, c.Consumer.Offsets.AutoCommit.Enable = sarama.OffsetOldest, false
	c.Consumer.MaxWaitTime, c.Consumer.Return.Errors = 250*time.Millisecond, true
	c.Consumer.Group.Session.Timeout, c.Consumer.Group.Heartbeat.Interval = session, time.Second
	c.Consumer.Group.Rebalance.Timeout = 3 * session
	strategy := map[string]sarama.BalanceStrategy{"range": sarama.NewBalanceStrategyRange(),
		"roundrobin": sarama.NewBalanceStrategyRoundRobin(), "sticky": sarama.NewBalanceStrategySticky()}[assignor]
	c.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
	g, err := sarama.NewConsumerGroup([]string{bootstrap}, group, c)
	if err != nil {
		die(err)
	}
	go func() {
		for err := range g.Errors() {
			say("refused", "-1 %s", strings.ReplaceAll(err.Error(), "\n", " "))
		}
	}()
	ctx := leave()
	for ctx.Err() == nil {
		if err := g.Consume(ctx, []string{topic}, handler{session, topic}); err != nil && ctx.Err() == nil {
			say("refused", "-1 consume: %s", strings.ReplaceAll(err.Error(), "\n", " "))
			time.Sleep(200 * time.Millisecond)
		}
	}
	g.Close()
}
