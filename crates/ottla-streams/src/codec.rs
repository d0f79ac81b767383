//! Codecs: how keys and values of a topology become bytes, and back.
//!
//! A codec is a value, so that it can carry settings; the topology keeps it beside the stream or the store that
//! uses it. A codec says itself whether null is one of its values: [`Nullable`] and [`NoKey`] do, the others take a
//! null for an undecodable record. Its [`Codec::name`] goes into the topology's fingerprint, so that a store is
//! not read with another codec than it was written with.
//!
//! Place in the walk: topology (typed) -> here -> task and stores (bytes). Not here: schemas of a registry.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why bytes are no value of a codec, or a value has no bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{codec}: {reason}")]
pub struct CodecError {
    /// Name of the codec.
    pub codec: &'static str,
    /// What does not fit.
    pub reason: String,
}

impl CodecError {
    /// An error of that codec.
    pub fn new(codec: &'static str, reason: impl fmt::Display) -> Self {
        Self { codec, reason: reason.to_string() }
    }
}

/// Turns values into bytes and back. The same value must give the same bytes each time: keys are compared as bytes.
///
/// ```
/// use ottla_streams::codec::{Codec, CodecError};
///
/// /// A temperature in hundredths of a degree, big-endian.
/// struct Hundredths;
///
/// impl Codec<f64> for Hundredths {
///     fn name(&self) -> &'static str {
///         "hundredths"
///     }
///     fn encode(&self, value: &f64, out: &mut Vec<u8>) -> Result<(), CodecError> {
///         out.extend_from_slice(&((value * 100.0) as i32).to_be_bytes());
///         Ok(())
///     }
///     fn decode(&self, bytes: &[u8]) -> Result<f64, CodecError> {
///         let bytes = bytes.try_into().map_err(|_| CodecError::new("hundredths", "not 4 bytes"))?;
///         Ok(f64::from(i32::from_be_bytes(bytes)) / 100.0)
///     }
/// }
///
/// let mut out = Vec::new();
/// Hundredths.encode(&21.5, &mut out).unwrap();
/// assert_eq!(Hundredths.decode(&out), Ok(21.5));
/// assert!(Hundredths.decode(b"abc").is_err());
/// ```
pub trait Codec<T>: Send + Sync + 'static {
    /// A short name that stays the same as long as the format does; part of the topology's fingerprint.
    fn name(&self) -> &'static str {
        "custom"
    }
    /// Appends the bytes of a value.
    fn encode(&self, value: &T, out: &mut Vec<u8>) -> Result<(), CodecError>;
    /// The value of these bytes; any bytes may come.
    fn decode(&self, bytes: &[u8]) -> Result<T, CodecError>;
    /// Whether this value is written as null.
    fn is_null(&self, _value: &T) -> bool {
        false
    }
    /// The value that null stands for; absent = null is no value of this codec.
    fn null(&self) -> Option<T> {
        None
    }
}

/// A codec that is shared between the parts of a topology.
pub type SharedCodec<T> = Arc<dyn Codec<T>>;

/// Text in UTF-8.
///
/// ```
/// use ottla_streams::codec::{Codec, Utf8};
/// assert_eq!(Utf8.decode("größe".as_bytes()), Ok("größe".to_string()));
/// assert!(Utf8.decode(&[0xff]).is_err());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Utf8;

impl Codec<String> for Utf8 {
    fn name(&self) -> &'static str {
        "utf8"
    }
    fn encode(&self, value: &String, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(value.as_bytes());
        Ok(())
    }
    fn decode(&self, bytes: &[u8]) -> Result<String, CodecError> {
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|error| CodecError::new("utf8", error))
    }
}

/// A signed 64-bit number, 8 bytes big-endian, as Kafka's `LongSerializer` writes it. Bytes sort as numbers only
/// among numbers of the same sign.
///
/// ```
/// use ottla_streams::codec::{Codec, I64};
/// let mut out = Vec::new();
/// I64.encode(&258, &mut out).unwrap();
/// assert_eq!(out, [0, 0, 0, 0, 0, 0, 1, 2]);
/// assert_eq!(I64.decode(&out), Ok(258));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct I64;

impl Codec<i64> for I64 {
    fn name(&self) -> &'static str {
        "i64"
    }
    fn encode(&self, value: &i64, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(&value.to_be_bytes());
        Ok(())
    }
    fn decode(&self, bytes: &[u8]) -> Result<i64, CodecError> {
        let bytes: [u8; 8] = bytes
            .try_into()
            .map_err(|_| CodecError::new("i64", format_args!("{} bytes instead of 8", bytes.len())))?;
        Ok(i64::from_be_bytes(bytes))
    }
}

/// Bytes as they are.
///
/// ```
/// use ottla_streams::codec::{Bytes, Codec};
/// assert_eq!(Bytes.decode(&[1, 2]).unwrap(), &[1, 2][..]);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Bytes;

impl Codec<bytes::Bytes> for Bytes {
    fn name(&self) -> &'static str {
        "bytes"
    }
    fn encode(&self, value: &bytes::Bytes, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(value);
        Ok(())
    }
    fn decode(&self, bytes: &[u8]) -> Result<bytes::Bytes, CodecError> {
        Ok(bytes::Bytes::copy_from_slice(bytes))
    }
}

/// JSON, through serde. Not for keys that hold maps of random order.
///
/// ```
/// use ottla_streams::codec::{Codec, Json};
/// #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
/// struct Order { customer: String, cents: i64 }
///
/// let json = Json::<Order>::new();
/// let order = json.decode(br#"{"customer": "ada", "cents": 250}"#).unwrap();
/// assert_eq!(order, Order { customer: "ada".into(), cents: 250 });
/// assert!(json.decode(b"{").is_err());
/// ```
pub struct Json<T>(PhantomData<fn() -> T>);

impl<T> Json<T> {
    /// The codec.
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T> Clone for Json<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Json<T> {}

impl<T> Default for Json<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for Json<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Json")
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Codec<T> for Json<T> {
    fn name(&self) -> &'static str {
        "json"
    }
    fn encode(&self, value: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
        serde_json::to_writer(out, value).map_err(|error| CodecError::new("json", error))
    }
    fn decode(&self, bytes: &[u8]) -> Result<T, CodecError> {
        serde_json::from_slice(bytes).map_err(|error| CodecError::new("json", error))
    }
}

/// Another codec, and null for `None`: for topics whose keys or values may be null.
///
/// ```
/// use ottla_streams::codec::{Codec, Nullable, Utf8};
/// let codec = Nullable(Utf8);
/// assert_eq!(codec.null(), Some(None));
/// assert!(codec.is_null(&None));
/// assert_eq!(codec.decode(b"x"), Ok(Some("x".to_string())));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Nullable<C>(pub C);

impl<T: 'static, C: Codec<T>> Codec<Option<T>> for Nullable<C> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn encode(&self, value: &Option<T>, out: &mut Vec<u8>) -> Result<(), CodecError> {
        match value {
            Some(value) => self.0.encode(value, out),
            None => Ok(()),
        }
    }
    fn decode(&self, bytes: &[u8]) -> Result<Option<T>, CodecError> {
        self.0.decode(bytes).map(Some)
    }
    fn is_null(&self, value: &Option<T>) -> bool {
        value.as_ref().is_none_or(|value| self.0.is_null(value))
    }
    fn null(&self) -> Option<Option<T>> {
        Some(None)
    }
}

/// Keys that nobody looks at: any bytes or null are `()`, and `()` is written as null.
///
/// ```
/// use ottla_streams::codec::{Codec, NoKey};
/// assert_eq!(NoKey.decode(b"whatever"), Ok(()));
/// assert_eq!(NoKey.null(), Some(()));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NoKey;

impl Codec<()> for NoKey {
    fn name(&self) -> &'static str {
        "none"
    }
    fn encode(&self, (): &(), _out: &mut Vec<u8>) -> Result<(), CodecError> {
        Ok(())
    }
    fn decode(&self, _bytes: &[u8]) -> Result<(), CodecError> {
        Ok(())
    }
    fn is_null(&self, (): &()) -> bool {
        true
    }
    fn null(&self) -> Option<()> {
        Some(())
    }
}

/// The bytes of a value; absent = null.
pub(crate) fn encoded<T: 'static>(
    codec: &dyn Codec<T>,
    value: &T,
) -> Result<Option<bytes::Bytes>, CodecError> {
    if codec.is_null(value) {
        return Ok(None);
    }
    let mut out = Vec::new();
    codec.encode(value, &mut out)?;
    Ok(Some(bytes::Bytes::from(out)))
}

/// The value of bytes; absent = null.
pub(crate) fn decoded<T: 'static>(codec: &dyn Codec<T>, bytes: Option<&[u8]>) -> Result<T, CodecError> {
    match bytes {
        Some(bytes) => codec.decode(bytes),
        None => codec.null().ok_or_else(|| CodecError::new(codec.name(), "null is no value of it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that null is a value only of the codecs that say so, in both directions.
    #[test]
    fn null_is_explicit() {
        assert!(decoded(&Utf8, None).is_err());
        assert!(decoded(&I64, None).is_err());
        assert_eq!(decoded(&Nullable(I64), None), Ok(None));
        assert_eq!(encoded(&Nullable(I64), &None), Ok(None));
        assert_eq!(encoded(&NoKey, &()), Ok(None));
        assert_eq!(encoded(&Utf8, &String::new()), Ok(Some(bytes::Bytes::new())), "empty is not null");
    }

    /// Proves that bytes of a wrong shape are errors that name the codec, not panics.
    #[test]
    fn wrong_bytes_are_named() {
        assert_eq!(
            I64.decode(b"123").map_err(|error| error.to_string()),
            Err("i64: 3 bytes instead of 8".into())
        );
        assert_eq!(Utf8.decode(&[0xc3]).map_err(|error| error.codec), Err("utf8"));
        assert_eq!(Json::<i64>::new().decode(b"\"x\"").map_err(|error| error.codec), Err("json"));
    }
}
