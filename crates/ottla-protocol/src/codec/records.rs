//! A field of type `records`: the bytes of record batches, as a short list of shared chunks.

use bytes::{Bytes, BytesMut};

/// Record batches as they stand in a request or response. One chunk when decoded; a fetch answers with several,
/// one per stretch of the log, and none of them is copied.
#[derive(Clone, Debug)]
pub struct Records(Repr);

#[derive(Clone, Debug)]
enum Repr {
    One(Bytes),
    Many(Vec<Bytes>),
}

impl Records {
    /// The chunks in order.
    pub fn chunks(&self) -> &[Bytes] {
        match &self.0 {
            Repr::One(chunk) => std::slice::from_ref(chunk),
            Repr::Many(chunks) => chunks,
        }
    }

    /// Length in bytes of all chunks.
    pub fn len(&self) -> usize {
        self.chunks().iter().map(Bytes::len).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes in one buffer: shared when there is one chunk, copied otherwise.
    pub fn to_bytes(&self) -> Bytes {
        match self.chunks() {
            [chunk] => chunk.clone(),
            chunks => {
                let mut all = BytesMut::with_capacity(self.len());
                chunks.iter().for_each(|chunk| all.extend_from_slice(chunk));
                all.freeze()
            }
        }
    }
}

impl Default for Records {
    fn default() -> Self {
        Self(Repr::One(Bytes::new()))
    }
}

impl From<Bytes> for Records {
    fn from(chunk: Bytes) -> Self {
        Self(Repr::One(chunk))
    }
}

impl From<Vec<Bytes>> for Records {
    fn from(chunks: Vec<Bytes>) -> Self {
        Self(Repr::Many(chunks))
    }
}

/// Equal when the bytes are, however they are cut.
impl PartialEq for Records {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.to_bytes() == other.to_bytes()
    }
}
