//! Typed stores: handles that a builder gives out, and views of a task's or a snapshot's bytes through them.
//!
//! A handle ([`KvStore`], [`WindowStore`], [`SessionStore`]) knows name, codecs and layout, and is cheap to clone. A
//! processor opens it with [`crate::processor::Context::store`] and reads its own uncommitted writes; a query opens
//! it on a [`Committed`] snapshot and sees one boundary of all stores of the task.
//!
//! Place in the walk: processors -> here -> state. Not here: what is a change, overlay, engines.

mod keys;
mod kv;
mod session;
#[cfg(test)]
mod tests;
mod window;

use crate::codec::{CodecError, SharedCodec};
use crate::engine::{Direction, EngineError, KeyRange, Scan, StoreId};
use crate::state::{Committed, StateError, TaskState};
use crate::task::{Core, Failure};

pub use kv::{Kv, KvReader, KvStore};
pub use session::{Session, SessionReader, SessionStore, Sessions};
pub use window::{WindowReader, WindowStore, Windows};

pub(crate) use session::{Due, Entry as SessionEntry, Stage};
pub(crate) use window::{Layout, WindowEntry};

/// Entries of a store, one after another.
pub type Entries<'a, E> = Box<dyn Iterator<Item = Result<E, StoreError>> + 'a>;

/// Why a store did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The processor, or the snapshot, does not have it.
    #[error("the store {0:?} is not here: list it where the processor is added")]
    NotAttached(String),
    /// A key or value is no value of the store's codecs.
    #[error("the store {store:?}: {error}")]
    Codec {
        /// The store.
        store: String,
        /// What the codec said.
        error: CodecError,
    },
    /// The state cannot be read or written.
    #[error("{0}")]
    State(String),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Codec { .. } => Self::Decode(error.to_string()),
            StoreError::NotAttached(_) => Self::Process(error.to_string()),
            StoreError::State(reason) => {
                let folder = String::new();
                Self::State(StateError::Engine(EngineError::Io { folder, during: "read", reason }))
            }
        }
    }
}

/// Any store that a builder gave out.
pub trait AnyStore: sealed::Sealed {
    /// Its name.
    fn name(&self) -> &str;
    /// Its place in the topology.
    #[doc(hidden)]
    fn place(&self) -> usize;
}

/// A store that can be opened in a processor.
pub trait StoreHandle: AnyStore {
    /// What it is opened as.
    type Access<'a>
    where
        Self: 'a;
    /// Opens it.
    #[doc(hidden)]
    fn open<'a>(&'a self, opening: Opening<'a>) -> Self::Access<'a>;
}

/// A task in whose stores a handle is opened.
pub struct Opening<'a>(pub(crate) &'a mut Core);

mod sealed {
    pub trait Sealed {}
    impl<K, V> Sealed for super::KvStore<K, V> {}
    impl<K, V> Sealed for super::WindowStore<K, V> {}
    impl<K, V> Sealed for super::SessionStore<K, V> {}
}

/// Reads at byte level: a task with its uncommitted writes, or a snapshot.
pub(crate) trait ReadBytes {
    fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<bytes::Bytes>, StoreError>;
    fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_>;
}

impl ReadBytes for TaskState {
    fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<bytes::Bytes>, StoreError> {
        self.get(store, key).map_err(|error| StoreError::State(error.to_string()))
    }
    fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_> {
        self.scan(store, range, direction)
    }
}

impl ReadBytes for Committed {
    fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<bytes::Bytes>, StoreError> {
        self.get(store, key).map_err(|error| StoreError::State(error.to_string()))
    }
    fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_> {
        self.scan(store, range, direction)
    }
}

/// Name, place and codecs: what all handles have.
pub(crate) struct Handle<K, V> {
    pub(crate) name: std::sync::Arc<str>,
    pub(crate) place: usize,
    pub(crate) key: SharedCodec<K>,
    pub(crate) value: SharedCodec<V>,
    /// Values begin with the timestamp of the record that they came from, 8 bytes big-endian.
    pub(crate) timestamped: bool,
}

impl<K, V> Clone for Handle<K, V> {
    fn clone(&self) -> Self {
        let (key, value) = (self.key.clone(), self.value.clone());
        Self { name: self.name.clone(), place: self.place, key, value, timestamped: self.timestamped }
    }
}

impl<K: 'static, V: 'static> Handle<K, V> {
    fn codec(&self, error: CodecError) -> StoreError {
        StoreError::Codec { store: self.name.to_string(), error }
    }

    /// Appends a key's bytes. A key that is null in its codec has none.
    pub(crate) fn key_into(&self, key: &K, out: &mut Vec<u8>) -> Result<(), StoreError> {
        if self.key.is_null(key) {
            return Err(self.codec(CodecError::new(self.key.name(), "null cannot be a store's key")));
        }
        self.key.encode(key, out).map_err(|error| self.codec(error))
    }

    pub(crate) fn key_of(&self, bytes: &[u8]) -> Result<K, StoreError> {
        self.key.decode(bytes).map_err(|error| self.codec(error))
    }

    /// Appends a value's bytes, behind its timestamp when the store has them.
    pub(crate) fn value_into(&self, value: &V, timestamp: i64, out: &mut Vec<u8>) -> Result<(), StoreError> {
        if self.timestamped {
            out.extend_from_slice(&timestamp.to_be_bytes());
        }
        self.value.encode(value, out).map_err(|error| self.codec(error))
    }

    /// A value and its timestamp (0 when the store has none).
    pub(crate) fn value_of(&self, bytes: &[u8]) -> Result<(V, i64), StoreError> {
        let (timestamp, bytes) = if self.timestamped {
            let (head, rest) = bytes
                .split_first_chunk::<8>()
                .ok_or_else(|| self.codec(CodecError::new("timestamped", "less than 8 bytes")))?;
            (i64::from_be_bytes(*head), rest)
        } else {
            (0, bytes)
        };
        Ok((self.value.decode(bytes).map_err(|error| self.codec(error))?, timestamp))
    }

    /// The task's id of the store.
    pub(crate) fn id_in(&self, core: &Core) -> Result<StoreId, StoreError> {
        let id = core.store_ids.get(self.place).copied().flatten();
        id.ok_or_else(|| StoreError::NotAttached(self.name.to_string()))
    }

    /// A snapshot's id of the store.
    pub(crate) fn id_at(&self, committed: &Committed) -> Result<StoreId, StoreError> {
        committed.store(&self.name).ok_or_else(|| StoreError::NotAttached(self.name.to_string()))
    }
}

/// Writes at byte level; a failure of the state is remembered, so that user code cannot pass over it.
pub(crate) fn put_bytes(
    core: &mut Core,
    store: StoreId,
    key: bytes::Bytes,
    value: Option<bytes::Bytes>,
) -> Result<(), StoreError> {
    core.put(store, key, value).map_err(|failure| match failure {
        Failure::State(error) => {
            let text = error.to_string();
            core.fault.get_or_insert(Failure::State(error));
            StoreError::State(text)
        }
        Failure::Process(reason) | Failure::Decode(reason) | Failure::Encode(reason) => {
            StoreError::State(reason)
        }
    })
}
