//! Transactional ids that this process had at earlier starts and has not now: fewer workers, a task that had one of its
//! own, another guarantee. A transaction that one of them left open would hold up every reader, and every process that
//! takes over its tasks, until its time-out.
//!
//! Taking an id ends what it left open, and nothing more is needed. At most so many at once, and not for ever: what
//! could not be taken stays noted in the state folder for the next start, and its time-out ends it meanwhile.

use std::sync::Arc;
use std::time::Duration;

use ottla_client::{ErrorClass, TransactionalProducer, TransactionalSettings};
use ottla_env::{spawn, time};

use super::settings::AppSettings;
use super::shared::Shared;
use super::thread;

/// Ids that are taken at the same time.
const AT_ONCE: usize = 8;
/// Longest for all of them.
const PATIENCE: Duration = Duration::from_secs(30);

/// Ends what the ids of these workers left open. `true`: all of them.
pub(super) async fn fence(settings: &Arc<AppSettings>, shared: &Shared, mut workers: Vec<usize>) -> bool {
    let deadline = time::now() + PATIENCE;
    let (mut taken, total) = (0, workers.len());
    while !workers.is_empty() {
        let some = workers.split_off(workers.len().saturating_sub(AT_ONCE));
        let tries: Vec<_> = some
            .into_iter()
            .map(|worker| {
                let settings = thread::transactional(settings, shared, worker);
                spawn::task("streams-fence", async move { time::timeout_at(deadline, take(settings)).await })
            })
            .collect();
        for one in tries {
            taken += usize::from(matches!(one.await, Ok(Ok(true))));
        }
    }
    if total > 0 {
        tracing::info!(total, taken, "ids of earlier starts were taken, which ends what they left open");
    }
    taken == total
}

async fn take(settings: TransactionalSettings) -> bool {
    let id = settings.transactional_id.clone();
    loop {
        match TransactionalProducer::init(settings.clone()).await {
            Ok(_) => return true,
            Err(error) if error.class() == ErrorClass::Retriable => {}
            Err(error) => {
                tracing::warn!(%id, %error, "an id of an earlier start cannot be taken: its time-out ends what it left open");
                return false;
            }
        }
        time::sleep(thread::RETRY_PAUSE).await;
    }
}
