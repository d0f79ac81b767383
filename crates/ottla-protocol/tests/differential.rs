//! Random messages of every API, record and version, read and written by our codec and by the `kafka-protocol` crate.
//!
//! The bytes come straight from the schema files (`support::random`), so three independent encoders must agree.
//! `kafka-protocol` is a development dependency only; what it does not know is checked by ours alone.

mod support;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey as TheirKey, RequestKind, ResponseKind};
use ottla_protocol::codec::{Reader, Writer};
use proptest::prelude::*;
use support::random::{Definition, Dice, definitions};
use support::recode;

/// What our codec makes of a body.
fn ours(definition: &Definition, version: i16, body: &[u8]) -> Bytes {
    let mut reader = Reader::new(Bytes::copy_from_slice(body));
    let mut writer = Writer::new();
    recode(definition.name(), version, &mut reader, &mut writer)
        .unwrap_or_else(|error| panic!("{} {version}: {error}: {body:02x?}", definition.name()));
    assert_eq!(reader.remaining(), 0, "{} {version}", definition.name());
    writer.finish_bytes()
}

/// What `kafka-protocol` makes of it; none when it does not know the version.
fn theirs(definition: &Definition, version: i16, body: &[u8]) -> Option<Bytes> {
    let key = TheirKey::try_from(definition.api()?).ok()?;
    let known = key.valid_versions();
    if version < known.min || version > known.max {
        return None;
    }
    let mut input = Bytes::copy_from_slice(body);
    let mut output = BytesMut::new();
    let result = if definition.is_request() {
        RequestKind::decode(key, &mut input, version).and_then(|message| message.encode(&mut output, version))
    } else {
        ResponseKind::decode(key, &mut input, version)
            .and_then(|message| message.encode(&mut output, version))
    };
    // Some messages know fewer versions than the crate's own table says.
    if result
        .as_ref()
        .is_err_and(|error| format!("{error:?}").contains("version not supported by this message type"))
    {
        return None;
    }
    result.unwrap_or_else(|error| panic!("{} {version}: {error:?}: {body:02x?}", definition.name()));
    assert!(input.is_empty(), "{} {version}: bytes left", definition.name());
    Some(output.freeze())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn random_messages_mean_the_same_to_both(seed in any::<u64>()) {
        // Proves that our generated code and an independent implementation read every field of every version at the
        // same place: both write back the very bytes that a third encoder made.
        let mut dice = Dice::new(seed);
        let (mut compared, mut alone) = (0, 0);
        for definition in definitions() {
            for version in definition.versions() {
                let body = definition.body(version, &mut dice);
                prop_assert_eq!(&ours(&definition, version, &body)[..], &body[..], "{} {}", definition.name(), version);
                match theirs(&definition, version, &body) {
                    Some(bytes) => {
                        prop_assert_eq!(&bytes[..], &body[..], "{} {}", definition.name(), version);
                        compared += 1;
                    }
                    None => alone += 1,
                }
            }
        }
        prop_assert!(compared >= 526, "{compared} compared, {alone} not");
    }
}
