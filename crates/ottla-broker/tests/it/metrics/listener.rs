//! The http listener against bytes that no scraper sends: it gives each connection up, and goes on.

use std::time::Duration;

use ottla_env::rng::{Rng, SeededRng};
use ottla_env::{net, time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::scraped::{Scraped, exchange, get};
use super::{health_of, start};
use crate::wire::{PATIENCE, Wire, config, fetch_request, run};

/// Proves: pages, methods and statuses are as documented; HEAD has no body.
#[test]
fn pages() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (broker, http) = start(config(folder.path())).await;
        let index = get(http, "/").await;
        assert!(index.status == 200 && index.body.contains("href=\"/metrics\""));
        assert_eq!(get(http, "/health?verbose=1").await.status, 200);
        assert_eq!(get(http, "/../../etc/passwd").await.status, 404);
        let head = exchange(http, b"HEAD /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("an answer");
        assert!(head.status == 200 && head.body.is_empty() && head.head.contains("content-length: "));
        let status =
            |request: &'static [u8]| async move { exchange(http, request).await.map(|page| page.status) };
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await, Some(405));
        assert_eq!(status(b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc").await, Some(413));
        assert_eq!(status(b"GET / HTTP/9.9\r\n\r\n").await, Some(400));
        broker.shutdown().await;
    });
}

/// Proves: random bytes, endless heads, and a Kafka request are refused or closed within their bounds, and the
/// listener answers the next one; so does the broker.
#[test]
fn hostile_bytes() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (broker, http) = start(config(folder.path())).await;
        let mut random = SeededRng::new(11);
        for length in [1, 7, 100, 5000, 20_000] {
            let mut noise = vec![0; length];
            random.fill(&mut noise);
            noise.extend(b"\r\n\r\n");
            if let Some(page) = exchange(http, &noise).await {
                assert!([400, 431].contains(&page.status), "{}", page.status);
            }
        }
        let endless = [b"GET / HTTP/1.1\r\nx: ".to_vec(), vec![b'y'; 100_000]].concat();
        assert!(exchange(http, &endless).await.is_none_or(|page| page.status == 431));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(500));
        assert!(exchange(http, many.as_bytes()).await.is_none_or(|page| page.status == 431));
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(7000));
        assert_eq!(exchange(http, long.as_bytes()).await.map(|page| page.status), Some(404));
        assert_eq!(
            exchange(http, &[0, 0, 0, 10, 0, 18, 0, 3, 0, 0, 0, 1, 0, 0]).await.map(|page| page.status),
            Some(400)
        );
        Scraped::get(http).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        broker.shutdown().await;
    });
}

/// Proves: connections beyond the bound are closed at once, silent ones are closed after a time, and then the
/// listener is there for others.
#[test]
fn silent_connections_are_bounded() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (broker, http) = start(config(folder.path())).await;
        let mut silent = Vec::new();
        for _ in 0..ottla_broker::limits::HTTP_CONNECTIONS_MAX {
            let mut stream = net::connect(&http.to_string(), PATIENCE).await.expect("it listens");
            stream.write_all(b"GET / HT").await.expect("written");
            silent.push(stream);
        }
        let mut refused = 0;
        for _ in 0..5 {
            let mut stream = net::connect(&http.to_string(), PATIENCE).await.expect("it listens");
            let mut byte = [0];
            let read = time::timeout(PATIENCE, stream.read(&mut byte)).await.expect("closed in time");
            refused += u32::from(matches!(read, Ok(0) | Err(_)));
        }
        assert_eq!(refused, 5);
        for mut stream in silent {
            let mut bytes = Vec::new();
            let read = time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("closed in time");
            assert!(read.is_err() || bytes.is_empty());
        }
        for _ in 0..100 {
            let answer = exchange(http, b"GET /health HTTP/1.1\r\n\r\n").await;
            if answer.is_some_and(|page| page.status == 200) {
                return broker.shutdown().await;
            }
            time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the listener did not come back");
    });
}

/// Proves: while the broker stops, which a client that takes no answers makes long, /health is there and says so.
#[test]
fn a_stop_can_be_watched() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = config(folder.path());
        settings.shutdown_timeout_ms = 60_000;
        let (broker, http) = start(settings).await;
        let mut deaf = Wire::connect(&broker).await;
        deaf.create_topic("t", 1).await;
        for _ in 0..10 {
            assert_eq!(deaf.produce("t", 0, &[&"x".repeat(900_000)]).await.0, 0);
        }
        let mut request = fetch_request("t", 0, 0, 0);
        request.topics[0].partitions[0].partition_max_bytes = i32::MAX;
        for _ in 0..20 {
            deaf.send(&request, 11).await;
        }
        // Time for the broker to take the requests up.
        time::sleep(Duration::from_secs(1)).await;
        let watch = async {
            let page = get(http, "/health").await;
            drop(deaf);
            page
        };
        let ((), page) = tokio::join!(broker.shutdown(), watch);
        assert_eq!((page.status, health_of(&page.body).0.as_str()), (503, "stopping"));
    });
}
