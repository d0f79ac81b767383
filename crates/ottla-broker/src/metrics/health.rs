//! Whether the broker serves requests, and if not, why.
//!
//! Place: broker and owner say it, the health page and one metric show it. Nothing depends on it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What the broker does with requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The folder is being loaded; the listener is not bound yet, or requests wait.
    Recovering {
        /// Why, for people.
        reason: String,
    },
    /// Everything is served.
    Ready,
    /// Reads are served, whatever changes something is refused.
    RefusingWrites {
        /// Why, for people.
        reason: String,
    },
    /// It is shutting down.
    Stopping,
}

impl Status {
    /// Its name on the health page.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Recovering { .. } => "recovering",
            Self::Ready => "ready",
            Self::RefusingWrites { .. } => "refusing_writes",
            Self::Stopping => "stopping",
        }
    }

    /// Why it is not ready.
    pub fn reason(&self) -> &str {
        match self {
            Self::Recovering { reason } | Self::RefusingWrites { reason } => reason,
            Self::Ready => "",
            Self::Stopping => "the broker is shutting down",
        }
    }
}

/// The present status and since when.
#[derive(Debug)]
pub struct Health {
    state: Mutex<(Status, Duration)>,
}

impl Health {
    /// Loading, since `now` by the monotonic clock.
    pub fn new(now: Duration) -> Self {
        let status = Status::Recovering { reason: "the folder is being loaded".to_owned() };
        Self { state: Mutex::new((status, now)) }
    }

    /// Says what holds from now on. Who stops does not become ready any more.
    pub fn set(&self, status: Status, now: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0 == Status::Stopping || state.0 == status {
            return;
        }
        // The time of a trouble runs from its beginning, whatever its reason becomes.
        let since = if state.0.name() == status.name() { state.1 } else { now };
        *state = (status, since);
    }

    /// The status and since when.
    pub fn get(&self) -> (Status, Duration) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: the time runs from the first word of a trouble, and nothing comes after the stop.
    #[test]
    fn since_when() {
        let at = Duration::from_secs;
        let health = Health::new(at(1));
        assert_eq!(health.get().0.name(), "recovering");
        health.set(Status::Ready, at(2));
        health.set(Status::Ready, at(3));
        assert_eq!(health.get(), (Status::Ready, at(2)));
        let refusing = |reason: &str| Status::RefusingWrites { reason: reason.to_owned() };
        health.set(refusing("disk full"), at(4));
        health.set(refusing("input/output error"), at(5));
        assert_eq!(health.get(), (refusing("input/output error"), at(4)));
        health.set(Status::Stopping, at(6));
        health.set(Status::Ready, at(7));
        assert_eq!(health.get(), (Status::Stopping, at(6)));
    }
}
