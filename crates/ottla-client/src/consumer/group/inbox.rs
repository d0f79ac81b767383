//! The commands of a member, taken while it does something else.

use std::pin::pin;

use ottla_env::time::{self, Instant};
use tokio::sync::mpsc;

use super::topics::Subscription;
use super::{Command, End};
use crate::record::TopicPartition;

/// What was asked for and is not done yet; of each kind the newest counts.
pub(super) struct Inbox {
    commands: mpsc::Receiver<Command>,
    pub(super) subscription: Option<Subscription>,
    join: Option<(u64, Vec<TopicPartition>)>,
    reconciled: Option<(u64, Vec<TopicPartition>)>,
}

impl Inbox {
    pub(super) fn new(commands: mpsc::Receiver<Command>) -> Self {
        Self { commands, subscription: None, join: None, reconciled: None }
    }

    fn take(&mut self, command: Option<Command>) -> Result<(), End> {
        match command {
            None => return Err(End::Abandoned),
            Some(Command::Leave(done)) => return Err(End::Leave(done)),
            Some(Command::Subscribe(subscription)) => self.subscription = Some(subscription),
            Some(Command::Join { round, owned }) => self.join = Some((round, owned)),
            Some(Command::Reconciled { round, owned }) => self.reconciled = Some((round, owned)),
        }
        Ok(())
    }

    /// What is owned, when the consumer has asked to join in this round. Answers of older rounds are dropped.
    pub(super) fn take_join(&mut self, round: u64) -> Option<Vec<TopicPartition>> {
        self.join.take().filter(|(of, _)| *of == round).map(|(_, owned)| owned)
    }

    /// What is owned, when the consumer has taken the assignment of this round.
    pub(super) fn take_reconciled(&mut self, round: u64) -> Option<Vec<TopicPartition>> {
        self.reconciled.take().filter(|(of, _)| *of == round).map(|(_, owned)| owned)
    }

    /// Runs something to its end, taking commands; it is dropped when one ends the membership.
    pub(super) async fn during<F: Future>(&mut self, something: F) -> Result<F::Output, End> {
        let mut something = pin!(something);
        loop {
            tokio::select! {
                output = &mut something => return Ok(output),
                command = self.commands.recv() => self.take(command)?,
            }
        }
    }

    /// Waits until then, or until a command comes.
    pub(super) async fn until(&mut self, instant: Instant) -> Result<(), End> {
        tokio::select! {
            () = time::sleep_until(instant) => Ok(()),
            command = self.commands.recv() => self.take(command),
        }
    }

    /// Waits for a command.
    pub(super) async fn next(&mut self) -> Result<(), End> {
        let command = self.commands.recv().await;
        self.take(command)
    }
}
