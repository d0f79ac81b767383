//! Bytes that no client should send: the connection is given up, nothing else is.

mod many;
mod slow;

use ottla_broker::Broker;
use ottla_env::rng::{Rng, SeededRng};
use ottla_protocol::api::ApiKey;
use ottla_protocol::codec::Writer;
use ottla_protocol::header::RequestHeader;
use ottla_protocol::messages as m;

use super::wire::{Wire, config, run};

/// Proves: impossible lengths, unknown keys and versions, cut and random bodies close their connection only.
#[test]
fn bad_frames_close_their_connection() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut good = Wire::connect(&broker).await;
        good.create_topic("t", 1).await;
        let mut frames: Vec<Vec<u8>> = vec![
            (-1_i32).to_be_bytes().to_vec(),
            0_i32.to_be_bytes().to_vec(),
            i32::MAX.to_be_bytes().to_vec(),
            framed(&[0x7f, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff]),
            framed(&header(ApiKey::Produce, 99)),
            framed(&header(ApiKey::JoinGroup, 0)),
            framed(&header(ApiKey::Produce, 9)),
            framed(&[0]),
        ];
        let mut random = SeededRng::new(7);
        for api in ottla_broker::dispatch::SERVED {
            let mut body = header(*api, api.api().max);
            let mut noise = vec![0; 200];
            random.fill(&mut noise);
            body.extend(noise);
            frames.push(framed(&body));
        }
        for frame in frames {
            let mut bad = Wire::connect(&broker).await;
            bad.send_raw(&frame).await;
            // Random bytes may even be a request; whatever comes, the broker is there for the next one.
            if frame.len() < 100 {
                assert!(bad.frame().await.is_none(), "not closed after {frame:?}");
            }
        }
        assert_eq!(good.produce("t", 0, &["still here"]).await, (0, 0));
        broker.shutdown().await;
    });
}

/// Proves: ApiVersions of a future version is answered in version 0 with the versions of ApiVersions (KIP-511), as
/// Kafka 4.4 does.
#[test]
fn future_api_versions() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        wire.send_raw(&framed(&header(ApiKey::ApiVersions, 77))).await;
        let answer = wire.receive::<m::ApiVersionsRequest>(1, 0).await;
        assert_eq!(answer.error_code, 35);
        let known: Vec<_> =
            answer.api_keys.iter().map(|key| (key.api_key, key.min_version, key.max_version)).collect();
        assert_eq!(known, [(18, 0, 5)]);
        broker.shutdown().await;
    });
}

/// Proves: a connection that claims much and sends little costs what it sends: 40 claims of 100 MiB at once.
#[test]
fn claims_cost_nothing() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let before = ottla_env::process::resident_bytes(ottla_env::process::id()).expect("known");
        let mut claims = Vec::new();
        for _ in 0..40 {
            let mut wire = Wire::connect(&broker).await;
            wire.send_raw(&(100_u32 << 20).to_be_bytes()).await;
            wire.send_raw(&[0; 1000]).await;
            claims.push(wire);
        }
        let mut good = Wire::connect(&broker).await;
        let versions = good.call(&m::ApiVersionsRequest::default(), 2).await;
        assert_eq!(versions.error_code, 0);
        let after = ottla_env::process::resident_bytes(ottla_env::process::id()).expect("known");
        assert!(after < before + (128 << 20), "{before} -> {after} bytes resident");
        broker.shutdown().await;
    });
}

pub(crate) fn header(api: ApiKey, version: i16) -> Vec<u8> {
    let mut writer = Writer::new();
    RequestHeader::new(api, version, 1, None).encode(&mut writer);
    writer.finish_bytes().to_vec()
}

pub(crate) fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = (body.len() as u32).to_be_bytes().to_vec();
    frame.extend(body);
    frame
}
