//! Rare faults of logs, disks, offsets and identities.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use ottla_client::TopicPartition;

use super::disk::Disk;
use super::log::Producer;
use super::process::Process;
use super::{Driver, DriverError};
use crate::record::{RawRecord, TaskId};

/// The disks of a process at some moment: a backup, or an image of a machine.
#[derive(Clone, Debug)]
pub struct DiskImage(BTreeMap<TaskId, Disk>);

/// Rare faults.
impl Driver {
    /// Time passes at once, with nobody at work: a long stop.
    pub fn skip(&mut self, by: Duration) -> Result<(), DriverError> {
        let running = self.at_work()?;
        let mut cluster = running.world.cluster.lock();
        cluster.clock.advance(by);
        cluster.tick();
        Ok(())
    }

    /// Compacts a topic; tombstones older than its `delete.retention.ms` (default one day) go, too.
    pub fn compact(&mut self, topic: &str) -> Result<(), DriverError> {
        let running = self.at_work()?;
        let now = running.now_ms();
        let mut cluster = running.world.cluster.lock();
        let retention = cluster.delete_retention(topic).ok_or(DriverError::UnknownTopic(topic.to_owned()))?;
        let retention = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
        for partition in 0..cluster.partition_count(topic).unwrap_or(0) {
            if let Some(log) = cluster.log_mut(&TopicPartition::new(topic, partition)) {
                log.compact(now.saturating_sub(retention));
                log.drop_markers();
            }
        }
        Ok(())
    }

    /// Sets `delete.retention.ms` of a topic.
    pub fn set_delete_retention(&mut self, topic: &str, retention: Duration) -> Result<(), DriverError> {
        self.at_work()?.world.cluster.lock().set_delete_retention(topic, retention);
        Ok(())
    }

    /// Topics that are changelogs.
    pub fn changelogs(&mut self) -> Result<Vec<String>, DriverError> {
        Ok(self.at_work()?.changelogs())
    }

    /// First offset, last stable offset and end of a partition.
    pub fn bounds(&mut self, topic: &str, partition: i32) -> Result<(i64, i64, i64), DriverError> {
        let running = self.at_work()?;
        let cluster = running.world.cluster.lock();
        let log = cluster.log(&TopicPartition::new(topic, partition));
        let log = log.ok_or_else(|| DriverError::UnknownTopic(topic.to_owned()))?;
        Ok((log.log_start(), log.last_stable(), log.end()))
    }

    /// Retention: records below an offset are gone.
    pub fn trim(&mut self, topic: &str, partition: i32, offset: i64) -> Result<(), DriverError> {
        let running = self.at_work()?;
        if let Some(log) = running.world.cluster.lock().log_mut(&TopicPartition::new(topic, partition)) {
            log.retain_from(offset);
        }
        Ok(())
    }

    /// An unclean election: records at and above an offset are lost.
    pub fn truncate(&mut self, topic: &str, partition: i32, offset: i64) -> Result<(), DriverError> {
        let running = self.at_work()?;
        if let Some(log) = running.world.cluster.lock().log_mut(&TopicPartition::new(topic, partition)) {
            log.truncate(offset);
        }
        Ok(())
    }

    /// Somebody else's transaction writes to a partition and stays open until [`Driver::end_stranger`].
    pub fn stranger(&mut self, topic: &str, partition: i32, record: RawRecord) -> Result<(), DriverError> {
        let running = self.at_work()?;
        if let Some(log) = running.world.cluster.lock().log_mut(&TopicPartition::new(topic, partition)) {
            log.append(record, Some(STRANGER));
        }
        Ok(())
    }

    /// Ends it.
    pub fn end_stranger(&mut self, topic: &str, partition: i32, commit: bool) -> Result<(), DriverError> {
        let running = self.at_work()?;
        if let Some(log) = running.world.cluster.lock().log_mut(&TopicPartition::new(topic, partition)) {
            log.mark(STRANGER, commit);
        }
        Ok(())
    }

    /// The committed offset of an input and its metadata, as they count now.
    pub fn committed(&mut self, topic: &str, partition: i32) -> Result<(Option<i64>, String), DriverError> {
        let running = self.at_work()?;
        let found = running.world.cluster.lock().committed_at(&TopicPartition::new(topic, partition));
        Ok((found.offset, found.metadata.to_string()))
    }

    /// An operator's tool writes an offset, or removes it.
    pub fn reset_offset(
        &mut self,
        topic: &str,
        partition: i32,
        to: Option<(i64, &str)>,
    ) -> Result<(), DriverError> {
        let running = self.at_work()?;
        let at = TopicPartition::new(topic, partition);
        let mut cluster = running.world.cluster.lock();
        let found = to.map(|(offset, metadata)| ottla_client::CommittedOffset {
            offset: Some(offset),
            metadata: metadata.into(),
            ..cluster.committed_at(&at)
        });
        cluster.reset_offset(&at, found);
        Ok(())
    }

    /// The next writes to the stores of a process fail, as on a full disk.
    pub fn fail_writes(&mut self, process: usize, times: u32) -> Result<(), DriverError> {
        let running = self.at_work()?;
        if let Some(process) = running.processes.get(process) {
            process.disks.values().for_each(|disk| disk.fail_writes(times));
        }
        Ok(())
    }

    /// The next reads of a process's stores fail: they are damaged, or the disk refuses.
    pub fn fail_reads(&mut self, process: usize, times: u32, damaged: bool) -> Result<(), DriverError> {
        let running = self.at_work()?;
        if let Some(process) = running.processes.get(process) {
            process.crash.fail_reads(times, damaged);
        }
        Ok(())
    }

    /// The meta records of a process's stores are damaged. The process should be dead.
    pub fn damage(&mut self, process: usize) -> Result<(), DriverError> {
        let running = self.at_work()?;
        if let Some(process) = running.processes.get(process) {
            process.disks.values().for_each(Disk::damage);
        }
        Ok(())
    }

    /// The disks of a process as they are now. `None` for engines that cannot be copied.
    pub fn image(&mut self, process: usize) -> Result<Option<DiskImage>, DriverError> {
        let running = self.at_work()?;
        let Some(process) = running.processes.get(process) else { return Ok(None) };
        let copy = |(id, disk): (&TaskId, &Disk)| Some((*id, disk.copy()?));
        Ok(process.disks.iter().map(copy).collect::<Option<_>>().map(DiskImage))
    }

    /// Kills a process and gives it other disks: empty ones, or an old image put back.
    pub fn replace_disks(&mut self, process: usize, image: Option<&DiskImage>) -> Result<(), DriverError> {
        let running = self.at_work()?;
        running.kill(process, false);
        if let Some(process) = running.processes.get_mut(process) {
            let copy = |(id, disk): (&TaskId, &Disk)| Some((*id, disk.copy()?));
            process.disks =
                image.map_or_else(BTreeMap::new, |image| image.0.iter().filter_map(copy).collect());
        }
        Ok(())
    }

    /// A second process with the identity and a copy of the disks of a first one: a cloned machine.
    pub fn clone_process(&mut self, process: usize) -> Result<(), DriverError> {
        let image = self.image(process)?;
        let broken = self.setup.broken;
        let running = self.at_work()?;
        let Some(original) = running.processes.get(process) else { return Ok(()) };
        let mut clone = Process::new(original.name.clone(), broken);
        clone.disks = image.map_or_else(BTreeMap::new, |image| image.0);
        running.processes.push(clone);
        Ok(())
    }

    /// Whether killed and failed processes are started again by themselves. Default: yes.
    pub fn set_restarts(&mut self, restarts: bool) -> Result<(), DriverError> {
        self.at_work()?.restarts = restarts;
        Ok(())
    }

    /// Why processes ended by themselves, so far.
    pub fn failures(&self) -> Vec<String> {
        self.running.as_ref().map_or_else(Vec::new, |running| running.failures.clone())
    }

    /// Requests of a process that get no answer: flushes, offset commits, takings of the id.
    pub fn fail_requests(
        &mut self,
        process: usize,
        flushes: u32,
        offsets: u32,
        inits: u32,
    ) -> Result<(), DriverError> {
        let running = self.at_work()?;
        if let Some(process) = running.processes.get(process) {
            let mut faults = process.faults.lock().unwrap_or_else(PoisonError::into_inner);
            (faults.flushes, faults.offsets, faults.inits) = (flushes, offsets, inits);
        }
        Ok(())
    }

    /// The cluster refuses every record for a topic, to all processes; `None`: none any more.
    pub fn refuse(&mut self, topic: Option<&str>) -> Result<(), DriverError> {
        let running = self.at_work()?;
        for process in &running.processes {
            let mut faults = process.faults.lock().unwrap_or_else(PoisonError::into_inner);
            faults.refused = topic.map(str::to_owned);
        }
        Ok(())
    }

    /// The cluster refuses records with that value, to all processes and in all topics but `safe`, and says so only when
    /// the transaction is flushed.
    pub fn poison(&mut self, value: impl Into<bytes::Bytes>, safe: &str) -> Result<(), DriverError> {
        let poison = (value.into(), safe.to_owned());
        let running = self.at_work()?;
        for process in &running.processes {
            process.faults.lock().unwrap_or_else(PoisonError::into_inner).poison = Some(poison.clone());
        }
        Ok(())
    }

    /// How often each point was passed, over all processes.
    pub fn passed(&self) -> BTreeMap<super::Point, u64> {
        let mut all = BTreeMap::new();
        for process in self.running.iter().flat_map(|running| &running.processes) {
            for (point, times) in process.crash.passed() {
                *all.entry(point).or_default() += times;
            }
        }
        all
    }

    /// Clusters from the next transaction on tell leader epochs of what they write, or do not.
    pub fn set_tells_epoch(&mut self, tells: bool) -> Result<(), DriverError> {
        self.at_work()?.world.cluster.lock().tells_epoch = tells;
        Ok(())
    }
}

const STRANGER: Producer = Producer { id: -7, epoch: 0 };
