//! The invariants, checked from outside: against the log's whole history and what the coordinators decided.

use std::collections::BTreeMap;

use bytes::Bytes;
use ottla_client::TopicPartition;

use super::crash::CrashPlan;
use super::process::{Process, World};
use crate::anchor;
use crate::engine::{Direction, KeyRange, StoreId};
use crate::record::TaskId;
use crate::recovery::ChangeSource;
use crate::state::{Committed, StoreKind, TaskState};

/// What a task's stores hold at their boundary, by store.
pub(super) type Content = Vec<BTreeMap<Bytes, Bytes>>;

/// Everything that is wrong, each with the invariant's name.
pub(super) fn violations(world: &World, processes: &[Process]) -> Vec<String> {
    let mut found = Vec::new();
    for process in processes {
        for id in process.disks.keys() {
            match committed(world, process, *id) {
                Ok(Some(state)) => check_task(world, &process.name, *id, &state, &mut found),
                Ok(None) => {}
                Err(reason) => {
                    found.push(format!("I1: {}, task {id}: cannot be read: {reason}", process.name))
                }
            }
        }
    }
    let unwitnessed = world.cluster.lock().unwitnessed();
    if unwitnessed > 0 {
        found.push(format!("I3: {unwitnessed} transactions with writes were committed without offsets"));
    }
    found
}

/// A task's stores at their boundary, from the running task or from the disk. `None`: it is being recovered.
pub(super) fn committed(
    world: &World,
    process: &Process,
    id: TaskId,
) -> Result<Option<std::sync::Arc<Committed>>, String> {
    if let Some(task) = process.task(id) {
        return Ok(Some(task.state().snapshot()));
    }
    if process.is_recovering(id) {
        return Ok(None);
    }
    let sub = &world.topology.sub_topologies()[usize::from(id.sub_topology)];
    let names: Vec<&str> = sub.stores.iter().map(|spec| spec.name.as_str()).collect();
    let Some(disk) = process.disks.get(&id) else { return Ok(None) };
    let engine = disk.open(&names, &CrashPlan::default(), 0).map_err(|error| error.to_string())?;
    let state = TaskState::open(engine, &sub.stores, sub.fingerprint).map_err(|error| error.to_string())?;
    Ok(Some(state.snapshot()))
}

/// All that a boundary's stores hold.
pub(super) fn content(state: &Committed) -> Result<Content, String> {
    let read = |store: usize| {
        let store = StoreId(u16::try_from(store).expect("a task has few stores"));
        let pairs = state.scan(store, &KeyRange::ALL, Direction::Forward);
        pairs.collect::<Result<BTreeMap<_, _>, _>>().map_err(|error| error.to_string())
    };
    (0..state.specs().len()).map(read).collect()
}

fn check_task(world: &World, process: &str, id: TaskId, state: &Committed, found: &mut Vec<String>) {
    let content = match content(state) {
        Ok(content) => content,
        Err(reason) => {
            found.push(format!("I1: {process}, task {id}: cannot be scanned: {reason}"));
            return;
        }
    };
    let inputs = world.plan.inputs_of(&world.topology, id);
    let cluster = world.cluster.lock();
    let decided: Vec<_> = inputs.iter().map(|at| cluster.decided_at(at)).collect();
    let newest = anchor::newest(&decided);
    for (store, source) in world.changes(id).iter().enumerate() {
        let ChangeSource::Changelog(at) = source else { continue };
        let spec = &state.specs()[store];
        let position = state.meta().stores[store].position;
        let target =
            newest.as_ref().and_then(|anchor| anchor.targets.get(store)).map_or(0, |target| target.offset);
        let place = format!("{process}, task {id}, store {}", spec.name);
        if position > target {
            found.push(format!("I2: {place}: position {position} is past the committed target {target}"));
        }
        let Some(log) = cluster.log(at) else { continue };
        let excused = |key: &Bytes| {
            log.is_superseded(key, position) || is_over(key, spec.kind, state.meta().stream_time)
        };
        let difference = differ(&log.fold(position, &cluster.deciding()), &content[store], excused);
        if let Some(difference) = difference {
            found.push(format!(
                "I1: {place}: is not the fold of its changelog below {position}: {difference}"
            ));
        }
    }
}

/// The first difference between what a store should hold and what it holds.
fn differ(
    wanted: &BTreeMap<Bytes, Bytes>,
    held: &BTreeMap<Bytes, Bytes>,
    excused: impl Fn(&Bytes) -> bool,
) -> Option<String> {
    let text = |bytes: Option<&Bytes>| bytes.map_or("nothing".to_owned(), |bytes| format!("{bytes:?}"));
    for key in wanted.keys().chain(held.keys()) {
        let (wanted, held) = (wanted.get(key), held.get(key));
        if wanted != held && !excused(key) {
            return Some(format!("key {key:?} should have {}, has {}", text(wanted), text(held)));
        }
    }
    None
}

/// A window that is over may be gone.
fn is_over(key: &Bytes, kind: StoreKind, stream_time: i64) -> bool {
    let Some(retention_ms) = kind.retention_ms() else { return false };
    key[..] < crate::state::window_prefix(stream_time.saturating_sub(retention_ms))[..]
}

/// What the committed records of a topic are, by partition and offset.
pub(super) fn records(world: &World, topic: &str) -> Vec<(i32, i64, crate::record::RawRecord)> {
    let cluster = world.cluster.lock();
    let partitions = cluster.partition_count(topic).unwrap_or(0);
    let of = |partition: i32| {
        let log = cluster.log(&TopicPartition::new(topic, partition))?;
        let committed = log.history().filter(|(.., outcome)| *outcome == super::log::Outcome::Committed);
        Some(committed.map(|(offset, record, _)| (partition, offset, record.clone())).collect::<Vec<_>>())
    };
    (0..partitions).filter_map(of).flatten().collect()
}
