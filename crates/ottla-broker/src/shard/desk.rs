//! Where somebody asks for a survey of the state, and the owner answers in steps.
//!
//! Place: beside the inbox, since a survey is no command: nothing is decided, and no client waits for it. The owner
//! looks here once in each of its loops, at one flag, and takes at most one step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ottla_core::decision::ShardTime;
use ottla_core::shard::ShardState;
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
