//! Identifiers and small value types, one newtype each.
//!
//! `Text` and `Bytes` share the buffer they were read from; nothing here copies a payload.

use std::fmt;

use bytes::Bytes;

/// Timestamp in ListOffsets, of Ottla alone: one past the highest tombstone that compaction has removed while it was
/// the last record of its key; 0 when there was none. Kafka answers UNSUPPORTED_VERSION (35).
pub const TOMBSTONE_HORIZON_TIMESTAMP: i64 = -1000;

/// A UTF-8 string that shares the buffer it was decoded from.
///
/// ```
/// use ottla_protocol::types::Text;
///
/// let topic = Text::from("orders");
/// assert_eq!(topic, "orders");
/// assert_eq!(topic.as_str().len(), topic.as_bytes().len());
/// assert_eq!(Text::from_static("orders"), topic.detached());
/// assert_eq!(Text::from_utf8(vec![0xff].into()), Err(vec![0xff].into()));
/// assert!(Text::EMPTY.is_empty());
/// ```
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Bytes);

impl Text {
    /// The empty string.
    pub const EMPTY: Self = Self(Bytes::new());

    /// A string with static lifetime; no allocation.
    pub const fn from_static(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }

    /// Takes bytes that must be UTF-8; gives them back when they are not.
    pub fn from_utf8(bytes: Bytes) -> Result<Self, Bytes> {
        if std::str::from_utf8(&bytes).is_ok() { Ok(Self(bytes)) } else { Err(bytes) }
    }

    /// The string.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("Text is only ever built from UTF-8")
    }

    /// The bytes of the string, shared.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// A copy in a buffer of its own, so that a long-lived state does not pin a whole request.
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }
}

impl std::ops::Deref for Text {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl std::borrow::Borrow<[u8]> for Text {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(Bytes::from(text.into_bytes()))
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A 128-bit identifier, big endian on the wire. Kafka prints it as unpadded URL-safe base64.
///
/// ```
/// use ottla_protocol::types::Uuid;
///
/// assert!(Uuid::ZERO.is_zero());
/// assert_eq!(Uuid([1; 16]).to_string(), "AQEBAQEBAQEBAQEBAQEBAQ");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// All zeros: "no topic id".
    pub const ZERO: Self = Self([0; 16]);

    /// Whether this is the zero id.
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let value = u128::from_be_bytes(self.0);
        for index in 0..22u32 {
            let shift = 128i32 - 6 * (index as i32 + 1);
            let six = if shift >= 0 { value >> shift } else { value << -shift } & 63;
            write!(f, "{}", char::from(*ALPHABET.get(six as usize).expect("six bits index 64 letters")))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A partition by its topic's id: names can be reused, ids never are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicIdPartition {
    /// The topic's id.
    pub topic_id: Uuid,
    /// Index of the partition in its topic, from 0.
    pub partition: i32,
}

/// "No producer id".
pub const NO_PRODUCER_ID: i64 = -1;
/// "No producer epoch".
pub const NO_PRODUCER_EPOCH: i16 = -1;
/// "No sequence".
pub const NO_SEQUENCE: i32 = -1;
