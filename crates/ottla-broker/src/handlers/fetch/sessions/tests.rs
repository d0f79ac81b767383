//! The rules of KIP-227, one by one.

use super::*;

const START: Duration = Duration::from_secs(1000);
const QUIET: Said = Said { bounds: (10, 0), has_records: false, has_error: false };

fn wanted(partition: i32, fetch_offset: i64) -> Wanted {
    Wanted {
        topic: Text::from_static("t"),
        topic_id: Uuid::ZERO,
        partition,
        fetch_offset,
        max_bytes: 1,
        current_leader_epoch: -1,
    }
}

fn asked(session_id: i32, session_epoch: i32, changes: Vec<Wanted>) -> Asked {
    Asked { session_id, session_epoch, changes, forgotten: Vec::new(), by_id: false }
}

fn all(partitions: i32) -> Vec<Wanted> {
    (0..partitions).map(|partition| wanted(partition, 0)).collect()
}

fn places(chosen: &Chosen) -> Vec<(i32, i64)> {
    chosen.wanted.iter().map(|wanted| (wanted.partition, wanted.fetch_offset)).collect()
}

/// Begins and finishes a full fetch; the id of the session.
fn full(sessions: &FetchSessions, partitions: i32, now: Duration) -> i32 {
    let chosen = sessions.begin(asked(0, 0, all(partitions)), now).expect("a full fetch is always served");
    let said = vec![QUIET; chosen.wanted.len()];
    sessions.finish(chosen, &said, now).expect("a new session has no epoch to miss")
}

fn next(sessions: &FetchSessions, id: i32, epoch: i32, now: Duration) -> Result<i32, SessionError> {
    let chosen = sessions.begin(asked(id, epoch, Vec::new()), now)?;
    let said = vec![QUIET; chosen.wanted.len()];
    sessions.finish(chosen, &said, now)
}

/// Proves: a session remembers, changes, forgets, rotates what gave data, and tells only news.
#[test]
fn a_session_goes_on_by_changes() {
    let sessions = FetchSessions::new(2, 7);
    let chosen = sessions.begin(asked(0, 0, all(3)), START).expect("served");
    assert!(chosen.is_told(0, QUIET), "a full answer tells all");
    let gave = Said { has_records: true, ..QUIET };
    let id = sessions.finish(chosen, &[gave, QUIET, QUIET], START).expect("created");
    assert!(id > 0);

    let mut request = asked(id, 1, vec![wanted(0, 10)]);
    request.forgotten.push((Text::from_static("t"), Uuid::ZERO, 2));
    let chosen = sessions.begin(request, START).expect("the next");
    assert_eq!(places(&chosen), [(0, 10), (1, 0)]);
    assert!(!chosen.is_told(0, QUIET));
    assert!(chosen.is_told(0, Said { bounds: (11, 0), ..QUIET }));
    assert!(chosen.is_told(0, Said { bounds: (10, 1), ..QUIET }));
    assert!(chosen.is_told(0, gave) && chosen.is_told(0, Said { has_error: true, ..QUIET }));
    assert_eq!(sessions.finish(chosen, &[gave, QUIET], START), Ok(id));

    let chosen = sessions.begin(asked(id, 2, Vec::new()), START).expect("the next");
    assert_eq!(places(&chosen), [(1, 0), (0, 10)], "who gave data goes behind the others");
}

/// Proves: what had an error is told again once it has none.
#[test]
fn an_error_that_is_over_is_told() {
    let sessions = FetchSessions::new(2, 7);
    let id = full(&sessions, 1, START);
    let chosen = sessions.begin(asked(id, 1, Vec::new()), START).expect("the next");
    let error = Said { has_error: true, ..QUIET };
    sessions.finish(chosen, &[error], START).expect("noted");
    let chosen = sessions.begin(asked(id, 2, Vec::new()), START).expect("the next");
    assert!(chosen.is_told(0, QUIET));
}

/// Proves: unknown ids, wrong epochs, other namings are refused, also when nothing changes; epochs skip 0.
#[test]
fn refusals() {
    let sessions = FetchSessions::new(2, 7);
    let id = full(&sessions, 1, START);
    assert_eq!(next(&sessions, id ^ 1, 1, START), Err(SessionError::UnknownId));
    assert_eq!(next(&sessions, 0, 1, START), Err(SessionError::UnknownId));
    assert_eq!(next(&sessions, 0, -2, START), Err(SessionError::UnknownId));
    assert_eq!(next(&sessions, id, 2, START), Err(SessionError::WrongEpoch));
    let by_id = Asked { by_id: true, ..asked(id, 1, Vec::new()) };
    assert_eq!(sessions.begin(by_id, START).err(), Some(SessionError::IdsAndNames));
    assert_eq!(next(&sessions, id, 1, START), Ok(id), "a refused request is not counted");
    assert_eq!((next_epoch(1), next_epoch(i32::MAX)), (2, 1));
}

/// Proves: two requests at once with one epoch: the second is refused; one that was overtaken says so.
#[test]
fn a_session_has_one_request_at_a_time() {
    let sessions = FetchSessions::new(2, 7);
    let id = full(&sessions, 1, START);
    let slow = sessions.begin(asked(id, 1, Vec::new()), START).expect("the next");
    assert_eq!(next(&sessions, id, 1, START), Err(SessionError::WrongEpoch));
    assert_eq!(next(&sessions, id, 2, START), Ok(id));
    assert_eq!(sessions.finish(slow, &[QUIET], START), Err(SessionError::WrongEpoch));
}

/// Proves: epochs 0 and -1 close the session they name, an emptied one ends, and a fetch that is never answered
/// leaves none behind.
#[test]
fn sessions_end() {
    let sessions = FetchSessions::new(9, 7);
    let id = full(&sessions, 1, START);
    let chosen = sessions.begin(asked(id, 0, all(1)), START).expect("a full fetch");
    assert_eq!(sessions.counts().sessions, 0);
    let other = sessions.finish(chosen, &[QUIET], START).expect("created");
    assert!(other > 0 && other != id);
    let chosen = sessions.begin(asked(other, -1, all(1)), START).expect("the last");
    assert_eq!(sessions.finish(chosen, &[QUIET], START), Ok(0));
    assert_eq!(sessions.counts().sessions, 0);

    let id = full(&sessions, 1, START);
    let mut request = asked(id, 1, Vec::new());
    request.forgotten.push((Text::from_static("t"), Uuid::ZERO, 0));
    let chosen = sessions.begin(request, START).expect("served");
    assert!(chosen.wanted.is_empty());
    assert_eq!(sessions.finish(chosen, &[], START), Ok(0));
    drop(sessions.begin(asked(0, 0, all(1)), START).expect("served"));
    assert_eq!(sessions.counts().sessions, 0);
}

/// Proves: a full cache gives no session, until one is unused for two minutes, or is old and smaller.
#[test]
fn who_makes_room() {
    let after = |seconds| START + Duration::from_secs(seconds);
    let sessions = FetchSessions::new(1, 7);
    let id = full(&sessions, 2, START);
    assert_eq!(full(&sessions, 9, after(120)), 0, "neither stale nor old");
    let fresh = full(&sessions, 1, after(121));
    assert!(fresh > 0, "a stale one goes, whatever its size");
    assert_eq!(next(&sessions, id, 1, after(121)), Err(SessionError::UnknownId));

    assert_eq!(next(&sessions, fresh, 1, after(200)), Ok(fresh));
    assert_eq!(full(&sessions, 9, after(240)), 0, "it was not old when it was last used");
    assert_eq!(next(&sessions, fresh, 2, after(250)), Ok(fresh));
    assert_eq!(full(&sessions, 1, after(251)), 0, "not smaller");
    let larger = full(&sessions, 2, after(251));
    assert!(larger > 0, "old and smaller");
    assert_eq!(next(&sessions, fresh, 3, after(251)), Err(SessionError::UnknownId));
    assert_eq!(sessions.counts(), Counts { sessions: 1, partitions: 2, evictions: 2 });
    assert_eq!(full(&FetchSessions::new(0, 1), 1, START), 0, "no slots, no sessions");
}

/// Proves: a partition that is named twice is fetched once, as it was named last.
#[test]
fn named_twice() {
    let sessions = FetchSessions::new(1, 7);
    let twice = vec![wanted(0, 1), wanted(1, 1), wanted(0, 5)];
    let chosen = sessions.begin(asked(0, -1, twice), START).expect("served");
    assert_eq!(places(&chosen), [(0, 5), (1, 1)]);
}

/// Proves: a session keeps nothing of the bytes of the requests that made and changed it, however large they were.
#[test]
fn requests_are_not_kept() {
    let sessions = FetchSessions::new(2, 7);
    let mut frames = Vec::new();
    let mut from_frame = |partition, fetch_offset| {
        let frame = bytes::Bytes::from(vec![b't'; 1000]);
        let topic = Text::from_utf8(frame.slice(..1)).expect("ASCII");
        frames.push(frame);
        Wanted { topic, ..wanted(partition, fetch_offset) }
    };
    let first = asked(0, 0, vec![from_frame(0, 0)]);
    let changes = [vec![from_frame(0, 5)], vec![from_frame(1, 0)]];
    let chosen = sessions.begin(first, START).expect("served");
    let id = sessions.finish(chosen, &[QUIET], START).expect("created");
    for (epoch, changed) in (1..).zip(changes) {
        let chosen = sessions.begin(asked(id, epoch, changed), START).expect("the next");
        let said = vec![QUIET; chosen.wanted.len()];
        assert_eq!(sessions.finish(chosen, &said, START), Ok(id));
    }
    assert_eq!(sessions.counts().partitions, 2);
    assert!(frames.iter().all(bytes::Bytes::is_unique), "somebody still has a part of them");
}
