//! Where somebody asks for a survey of the state, and the owner answers in steps; and where the files thread asks for
//! a copy of the state, or for a snapshot.
//!
//! Place: beside the inbox, since a survey is no command: nothing is decided, and no client waits for it. The owner
//! looks here once in each of its loops, at one flag, and takes at most one step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use ottla_core::decision::{Position, ShardTime};
use ottla_core::shard::{ShardState, Snapshot};
use ottla_core::survey::Survey;
use tokio::sync::oneshot;

use super::Request;
use super::inbox::Inbox;

/// A survey on its way to the owner and back.
type Asked = (Survey, oneshot::Sender<Survey>);

/// The desk.
pub struct SurveyDesk {
    is_asked: AtomicBool,
    asked: Mutex<Option<Asked>>,
    inbox: Arc<Inbox<Request>>,
}

impl SurveyDesk {
    /// Beside this inbox, whose owner answers.
    pub fn new(inbox: Arc<Inbox<Request>>) -> Self {
        Self { is_asked: AtomicBool::new(false), asked: Mutex::new(None), inbox }
    }

    /// A whole survey with at most so many offsets; none when the owner is gone. It may take as long as the owner
    /// is busy: the caller sets a time. One at a time: a second asker takes the place of the first.
    pub async fn survey(&self, offsets_max: usize) -> Option<Survey> {
        let mut survey = Survey::new(offsets_max);
        while !survey.is_done() {
            let (sender, answer) = oneshot::channel();
            *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some((survey, sender));
            self.is_asked.store(true, Ordering::Release);
            self.inbox.nudge();
            survey = answer.await.ok()?;
        }
        Some(survey)
    }

    /// The owner takes one step, if somebody asks.
    pub fn serve(&self, state: &ShardState, now: ShardTime) {
        if !self.is_asked.load(Ordering::Relaxed) || !self.is_asked.swap(false, Ordering::AcqRel) {
            return;
        }
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((mut survey, sender)) = asked {
            state.survey(&mut survey, now);
            drop(sender.send(survey)); // who asked may have gone
        }
    }
}

/// A copy of the state, and its position.
type State = (Snapshot, Position);

/// The files thread's desk.
pub struct FilesDesk {
    is_asked: AtomicBool,
    asked: Mutex<Option<SyncSender<State>>>,
    wants_snapshot: AtomicBool,
    inbox: Arc<Inbox<Request>>,
}

impl FilesDesk {
    /// Beside this inbox, whose owner answers.
    pub fn new(inbox: Arc<Inbox<Request>>) -> Self {
        let (is_asked, wants_snapshot) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { is_asked, asked: Mutex::new(None), wants_snapshot, inbox }
    }

    /// A copy of the state will arrive, when the owner comes to it. Not everything in it may be durable.
    pub fn ask_state(&self) -> Receiver<State> {
        let (sender, answer) = sync_channel(1);
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        self.is_asked.store(true, Ordering::Release);
        self.inbox.nudge();
        answer
    }

    /// A snapshot is to be written soon.
    pub fn ask_snapshot(&self) {
        self.wants_snapshot.store(true, Ordering::Release);
        self.inbox.nudge();
    }

    /// Whether a snapshot is wished for; asked once, it is as if nobody had.
    pub fn takes_snapshot(&self) -> bool {
        self.wants_snapshot.load(Ordering::Relaxed) && self.wants_snapshot.swap(false, Ordering::AcqRel)
    }

    /// The owner gives a copy of its state, if somebody asks.
    pub fn serve(&self, state: &ShardState) {
        if !self.is_asked.load(Ordering::Relaxed) || !self.is_asked.swap(false, Ordering::AcqRel) {
            return;
        }
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = asked {
            drop(sender.try_send((state.snapshot(), state.position()))); // who asked may have gone
        }
    }
}
