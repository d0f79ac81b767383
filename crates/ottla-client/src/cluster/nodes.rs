//! One connection per node and lane, made when it is needed and again when it has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ottla_env::time::{self, Instant};

use crate::backoff::Backoff;
use crate::connection::Connection;
use crate::error::CallError;
use crate::settings::ClientSettings;

/// Which of a node's connections: requests of one lane wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Produce and Fetch.
    Data,
    /// Everything that is answered soon.
    Control,
    /// JoinGroup and SyncGroup, which a broker holds back until the other members have come.
    Group,
}

/// Bootstrap addresses are kept beside the nodes, under ids that no node has.
const BOOTSTRAP_BASE: i32 = i32::MIN;

#[derive(Debug)]
pub(super) struct Nodes {
    settings: Arc<ClientSettings>,
    slots: Mutex<BTreeMap<(i32, Lane), SharedSlot>>,
}

type SharedSlot = Arc<tokio::sync::Mutex<Slot>>;

/// The lock of a slot is what makes attempts single file. It is held while connecting, which is bounded by the
/// time-out of connection set-up; whoever waits for it wants exactly that connection.
#[derive(Debug)]
struct Slot {
    address: String,
    connection: Option<Connection>,
    backoff: Backoff,
    not_before: Option<Instant>,
}

impl Nodes {
    pub(super) fn new(settings: Arc<ClientSettings>) -> Self {
        Self { settings, slots: Mutex::default() }
    }

    /// The connection to a bootstrap address.
    pub(super) async fn bootstrap(&self, index: usize, address: &str) -> Result<Connection, CallError> {
        let index = i32::try_from(index).expect("there are at most 100 bootstrap addresses");
        self.connection(BOOTSTRAP_BASE + index, Lane::Control, address).await
    }

    /// The open connection, or a new one. One attempt, behind the pause that a failed one left.
    pub(super) async fn connection(
        &self,
        id: i32,
        lane: Lane,
        address: &str,
    ) -> Result<Connection, CallError> {
        let slot = self.slot(id, lane, address);
        let mut slot = slot.lock().await;
        if slot.address != address {
            slot.address = address.to_owned();
            slot.connection = None;
            slot.backoff.reset();
            slot.not_before = None;
        }
        if let Some(connection) = slot.connection.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        slot.connection = None;
        if let Some(not_before) = slot.not_before {
            time::sleep_until(not_before).await;
        }
        match Connection::connect(address, Arc::clone(&self.settings)).await {
            Ok(connection) => {
                slot.backoff.reset();
                slot.not_before = None;
                slot.connection = Some(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                slot.not_before = Some(time::now() + slot.backoff.next());
                Err(error)
            }
        }
    }

    /// The open connections, without waiting for any that is being made.
    pub(super) fn open(&self) -> Vec<Connection> {
        let slots = self.slots.lock().expect("no holder of this lock panics");
        let open = slots.values().filter_map(|slot| slot.try_lock().ok()?.connection.clone());
        open.filter(|connection| !connection.is_closed()).collect()
    }

    fn slot(&self, id: i32, lane: Lane, address: &str) -> SharedSlot {
        let mut slots = self.slots.lock().expect("no holder of this lock panics");
        let slot = slots.entry((id, lane)).or_insert_with(|| {
            Arc::new(tokio::sync::Mutex::new(Slot {
                address: address.to_owned(),
                connection: None,
                backoff: Backoff::new(self.settings.reconnect_backoff, self.settings.reconnect_backoff_max),
                not_before: None,
            }))
        });
        Arc::clone(slot)
    }
}
