//! Connections against peers that misbehave.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ottla_env::spawn;
use ottla_protocol::messages::{MetadataRequest, MetadataResponse};

use super::*;
use crate::scripted::{Answer, Call, Server, api_versions, raw_frame, serve};

const METADATA: Versions = Versions::new(9, 12);

fn run<F: Future>(test: F) -> F::Output {
    spawn::runtime(2).expect("a runtime").block_on(test)
}

fn settings() -> Arc<ClientSettings> {
    let mut settings =
        ClientSettings::new("a:1").expect("an address").request_timeout(Duration::from_millis(300));
    settings.answer_bytes_max = 1 << 20;
    Arc::new(settings)
}

/// A server that answers ApiVersions rightly, and everything else by the script.
async fn after_handshake(mut script: impl FnMut(Call) -> Answer + Send + 'static) -> Server {
    serve(move |_, call| match call.header.api {
        ApiKey::ApiVersions => call.reply(&api_versions()),
        _ => script(call),
    })
    .await
}

async fn ask(server: &Server) -> Result<MetadataResponse, CallError> {
    let connection = Connection::connect(&server.address, settings()).await?;
    connection.call(&MetadataRequest::default(), METADATA).await
}

/// Proves that pipelined requests get their own answers, in order, and that versions are negotiated.
#[test]
fn pipelines() {
    run(async {
        let mut count = 0;
        let server = after_handshake(move |call| {
            count += 1;
            call.reply(&MetadataResponse { controller_id: count, ..MetadataResponse::default() })
        })
        .await;
        let connection = Connection::connect(&server.address, settings()).await.expect("connected");
        assert_eq!(connection.version::<MetadataRequest>(METADATA).expect("both have it"), 12);
        assert_eq!(connection.finalized("transaction.version"), Some(Finalized { level: 2, epoch: 1 }));
        assert_eq!(connection.finalized("other"), None);
        let mut pending = Vec::new();
        for _ in 0..IN_FLIGHT_MAX {
            pending.push(connection.start(&MetadataRequest::default(), 12).await.expect("queued"));
        }
        for (index, pending) in pending.iter_mut().enumerate() {
            let answer = pending.wait().await.expect("answered");
            assert_eq!(answer.controller_id as usize, index + 1);
        }
    });
}

/// Proves that every kind of nonsense from a peer is an error that names it, and ends only the connection.
#[test]
fn hostile_answers() {
    run(async {
        let foreign = after_handshake(|_| raw_frame(&[0, 0, 0, 99, 0])).await;
        let error = ask(&foreign).await.expect_err("refused");
        assert!(
            matches!(&error, CallError::Closed { reason, .. } if reason.contains("where 1 was due")),
            "{error}"
        );

        let cut = after_handshake(|call| {
            let id = call.header.correlation_id.to_be_bytes();
            raw_frame(&[&id[..], &[0, 255, 255, 255, 255]].concat())
        })
        .await;
        let error = ask(&cut).await.expect_err("refused");
        assert!(matches!(error, CallError::Garbled { .. }) && error.is_retriable(), "{error}");

        let huge =
            after_handshake(|_| Answer::Bytes(vec![Bytes::from_static(&[0x7f, 0xff, 0xff, 0xff])])).await;
        let error = ask(&huge).await.expect_err("refused");
        assert!(
            matches!(&error, CallError::Closed { reason, .. } if reason.contains("2147483647")),
            "{error}"
        );

        let short = after_handshake(|_| raw_frame(&[0, 0])).await;
        let error = ask(&short).await.expect_err("refused");
        assert!(matches!(&error, CallError::Closed { .. }), "{error}");

        let closed = after_handshake(|_| Answer::Close).await;
        let error = ask(&closed).await.expect_err("refused");
        assert!(matches!(&error, CallError::Closed { .. }) && error.is_retriable(), "{error}");
        assert!(error.may_have_happened());
    });
}

/// Proves that a peer that never answers is given up after the time-out, with all that waits on it.
#[test]
fn silence_ends_the_connection() {
    run(async {
        let silent = after_handshake(|_| Answer::Silence).await;
        let connection = Connection::connect(&silent.address, settings()).await.expect("connected");
        let mut first = connection.start(&MetadataRequest::default(), 12).await.expect("queued");
        let mut second = connection.start(&MetadataRequest::default(), 12).await.expect("queued");
        let error = first.wait().await.expect_err("silence");
        assert!(matches!(error, CallError::TimedOut { .. }), "{error}");
        assert!(second.wait().await.is_err() && connection.is_closed());
        let error = connection.start(&MetadataRequest::default(), 12).await.expect_err("closed");
        assert!(matches!(error, CallError::Closed { .. }), "{error}");
    });
}

/// Proves that a port without a listener, and a peer without the API, are named.
#[test]
fn unreachable_and_unsupported() {
    run(async {
        let address = {
            let server = after_handshake(|_| Answer::Close).await;
            server.address.clone()
        };
        let server = serve(|_, call| match call.header.api {
            ApiKey::ApiVersions => call.reply(&ottla_protocol::messages::ApiVersionsResponse::default()),
            _ => Answer::Close,
        })
        .await;
        let error = ask(&server).await.expect_err("nothing is served");
        assert!(matches!(&error, CallError::Unsupported { .. }) && !error.is_retriable(), "{error}");
        drop(server);
        let mut other = (*settings()).clone();
        other.connection_setup_timeout = Duration::from_millis(500);
        if let Err(error) = Connection::connect(&address, Arc::new(other)).await {
            assert!(matches!(error, CallError::Connect { .. }), "{error}");
        }
    });
}
