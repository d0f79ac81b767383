//! Metrics and health, scraped from a started broker: they move by what happened, and tell what is wrong.

mod documented;
mod listener;
mod scraped;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ottla_broker::metrics::table::GROUPS;
use ottla_broker::{Broker, Config};
use ottla_env::clock::OsClock;
use ottla_env::disk::sim::{Fault, FaultPlan, SimDisk};
use ottla_env::time;
use ottla_protocol::messages as m;

use super::requests::{Pair, end};
use super::wire::{Wire, config, produce_request, run};
use scraped::{Scraped, get};

/// A broker with an http listener on a free port.
async fn start(config: Config) -> (Broker, SocketAddr) {
    let config = Config { http_listen: "127.0.0.1:0".to_owned(), ..config };
    let broker = Broker::start(config).await.expect("it starts");
    let http = broker.http_addr().expect("http.listen is set");
    (broker, http)
}

async fn start_on(disk: &SimDisk) -> (Broker, SocketAddr) {
    let loopback = "127.0.0.1:0".to_owned();
    // A reload waits for the file that is being prepared: a small one, since zeroes are slow on a simulated disk.
    let config = Config {
        listen: loopback.clone(),
        http_listen: loopback,
        log_file_bytes: 1 << 20,
        ..Config::default()
    };
    let broker =
        Broker::start_on(config, Arc::new(disk.clone()), Arc::new(OsClock)).await.expect("it starts");
    let http = broker.http_addr().expect("http.listen is set");
    (broker, http)
}

/// Scrapes until a scrape is as it should be: some counters follow their event by a moment.
async fn scrape_until(http: SocketAddr, is_right: impl Fn(&Scraped) -> bool) -> Scraped {
    for _ in 0..100 {
        let scraped = Scraped::get(http).await;
        if is_right(&scraped) {
            return scraped;
        }
        time::sleep(Duration::from_millis(50)).await;
    }
    Scraped::get(http).await
}

/// Proves: what is exported is what the table says, each family with its kind; nothing is missing, nothing is extra.
#[test]
fn the_table_is_what_is_exported() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (broker, http) = start(config(folder.path())).await;
        let scraped = Scraped::get(http).await;
        let metrics = || GROUPS.iter().flat_map(|group| group.metrics);
        for metric in metrics() {
            assert!(scraped.kinds.contains_key(metric.name), "{} is not exported", metric.name);
        }
        for name in scraped.kinds.keys() {
            assert!(metrics().any(|metric| metric.name == name), "{name} is not in the table");
        }
        assert!(scraped.value("ottla_ready{status=\"ready\"}") == 1.0);
        broker.shutdown().await;
    });
}

/// Proves: the counters of requests, topics, connections and the log move by the right amounts after known traffic,
/// and errors are counted by API and code.
#[test]
fn counters_move_by_what_happened() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (broker, http) = start(config(folder.path())).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 2).await;
        let before = Scraped::get(http).await;
        assert_eq!(wire.produce("t", 0, &["a", "b", "c"]).await, (0, 0));
        assert_eq!(wire.produce("t", 1, &["d"]).await, (0, 0));
        assert_eq!(wire.produce("nowhere", 0, &["e"]).await.0, 3);
        assert_eq!(wire.produce("t", 7, &["f"]).await.0, 3);
        assert_eq!(wire.fetch("t", 0, 0, 0).await.values.len(), 3);
        assert_eq!(wire.fetch("t", 0, 99, 0).await.error, 1);
        drop(Wire::connect(&broker).await);
        let closed = "ottla_connections_closed_total{reason=\"peer\"}";
        let after = scrape_until(http, |scraped| scraped.grown(&before, closed) == 1.0).await;
        let grown = |series: &str| after.grown(&before, series);
        assert_eq!(grown("kafka_server_brokertopicmetrics_messagesin_total{topic=\"t\"}"), 4.0);
        assert_eq!(grown("kafka_server_brokertopicmetrics_totalproducerequests_total{topic=\"t\"}"), 3.0);
        assert_eq!(grown("kafka_server_brokertopicmetrics_failedproducerequests_total{topic=\"t\"}"), 1.0);
        assert_eq!(
            grown("kafka_server_brokertopicmetrics_totalproducerequests_total{topic=\"(other)\"}"),
            1.0
        );
        assert_eq!(
            grown("kafka_server_brokertopicmetrics_failedproducerequests_total{topic=\"(other)\"}"),
            1.0
        );
        assert_eq!(grown("kafka_server_brokertopicmetrics_totalfetchrequests_total{topic=\"t\"}"), 2.0);
        assert_eq!(grown("kafka_server_brokertopicmetrics_failedfetchrequests_total{topic=\"t\"}"), 1.0);
        let (bytes_in, bytes_out) = (
            grown("kafka_server_brokertopicmetrics_bytesin_total{topic=\"t\"}"),
            grown("kafka_server_brokertopicmetrics_bytesout_total{topic=\"t\"}"),
        );
        assert!(bytes_in > bytes_out && bytes_out > 61.0, "{bytes_in} in, {bytes_out} of one batch out");
        assert_eq!(
            grown("kafka_network_requestmetrics_requests_total{request=\"Produce\",version=\"9\"}"),
            4.0
        );
        assert_eq!(
            grown("kafka_network_requestmetrics_requests_total{request=\"Fetch\",version=\"11\"}"),
            2.0
        );
        let unknown = "kafka_network_requestmetrics_errors_total{request=\"Produce\",error=\"UNKNOWN_TOPIC_OR_PARTITION\"}";
        assert_eq!(grown(unknown), 2.0);
        assert_eq!(
            grown(
                "kafka_network_requestmetrics_errors_total{request=\"Fetch\",error=\"OFFSET_OUT_OF_RANGE\"}"
            ),
            1.0
        );
        assert_eq!(grown("kafka_network_requestmetrics_totaltime_seconds_count{request=\"Produce\"}"), 4.0);
        assert!(grown("kafka_network_requestmetrics_requestbytes_total{request=\"Produce\"}") > bytes_in);
        assert!(grown("kafka_network_requestmetrics_responsebytes_total{request=\"Fetch\"}") > bytes_out);
        assert_eq!(grown("ottla_log_frames_total"), 2.0, "refused requests write nothing");
        assert_eq!(grown("ottla_log_frame_batches_sum"), 2.0);
        assert!(grown("ottla_disk_written_bytes_total{file=\"log\"}") >= 8192.0, "two frames of a block");
        assert!(grown("ottla_disk_sync_seconds_count{file=\"log\"}") >= 2.0);
        assert_eq!(grown("kafka_server_socketservermetrics_connection_creation_total"), 1.0);
        assert_eq!(grown(closed), 1.0);
        assert_eq!(after.value("kafka_server_socketservermetrics_connection_count"), 1.0);
        assert!(
            grown("ottla_owner_step_seconds_count") >= 4.0 && grown("ottla_owner_busy_seconds_total") > 0.0
        );
        assert!(grown("ottla_owner_queue_seconds_count") >= 4.0);
        assert_eq!(after.value("kafka_controller_kafkacontroller_globaltopiccount"), 3.0);
        assert_eq!(after.value("kafka_server_replicamanager_partitioncount"), 102.0);
        assert!(after.value("ottla_log_bytes") > 0.0 && after.value("ottla_disk_free_bytes") > 0.0);
        assert!(after.value("process_resident_memory_bytes") > 0.0 && after.value("process_open_fds") > 3.0);
        broker.shutdown().await;
    });
}

fn health_of(body: &str) -> (String, String) {
    let page: serde_json::Value = serde_json::from_str(body).expect("JSON");
    let text = |name: &str| page[name].as_str().expect("text").to_owned();
    (text("status"), text("reason"))
}

/// Proves: while the log cannot be written, /health is 503 and says why, the failure is counted, and scrapes go on;
/// when it can be written again, health is 200.
#[test]
fn health_follows_the_disk() {
    run(async {
        let disk = SimDisk::new(3);
        let (broker, http) = start_on(&disk).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        let page = get(http, "/health").await;
        assert_eq!((page.status, health_of(&page.body).0.as_str()), (200, "ready"));
        disk.set_plan(FaultPlan::default().with(Fault::SyncError, 1_000_000));
        let produce = wire.send(&produce_request("t", 0, &["during"], -1), 9).await;
        let mut page = get(http, "/health").await;
        for _ in 0..100 {
            if health_of(&page.body).0 == "refusing_writes" {
                break;
            }
            time::sleep(Duration::from_millis(50)).await;
            page = get(http, "/health").await;
        }
        let (status, reason) = health_of(&page.body);
        assert_eq!((page.status, status.as_str()), (503, "refusing_writes"));
        assert!(reason.contains("cannot be reopened"), "{reason}");
        let scraped = Scraped::get(http).await;
        assert_eq!(scraped.value("ottla_ready{status=\"refusing_writes\"}"), 0.0);
        assert!(scraped.has("ottla_ready{status=\"refusing_writes\"}"));
        assert_eq!(scraped.value("ottla_log_failures_total"), 1.0);
        assert!(scraped.value("ottla_disk_errors_total{file=\"log\",operation=\"sync\"}") >= 1.0);
        disk.set_plan(FaultPlan::default());
        wire.receive::<m::ProduceRequest>(produce, 9).await;
        assert_eq!(wire.produce("t", 0, &["after"]).await.0, 0);
        assert_eq!(get(http, "/health").await.status, 200);
        assert_eq!(Scraped::get(http).await.value("ottla_reloads_total"), 1.0);
        broker.shutdown().await;
    });
}

async fn produce_in(wire: &mut Wire, id: &str, pair: &Pair, values: &[&str]) {
    let mut request = produce_request("t", 0, values, -1);
    request.transactional_id = Some(id.into());
    let mut builder = ottla_protocol::batch::BatchBuilder::new(ottla_protocol::compression::Codec::None);
    builder.set_producer(ottla_protocol::batch::Producer {
        producer_id: pair.producer_id,
        producer_epoch: pair.producer_epoch,
        base_sequence: 0,
        transactional: true,
    });
    for value in values {
        let value = Some(value.as_bytes());
        builder.append(&ottla_protocol::record::NewRecord { value, ..Default::default() }).expect("small");
    }
    request.topic_data[0].partition_data[0].records = Some(builder.build().into());
    let answer = wire.call(&request, 9).await;
    assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
}

/// Proves: the lag of a group is split into what it is behind and what an open transaction hides from it, the
/// transaction shows among the ids and as a lag of the last stable offset, and all of it goes with the transaction.
#[test]
fn lag_is_behind_or_hidden() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (broker, http) = start(config(folder.path())).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        assert_eq!(wire.produce("t", 0, &["0", "1", "2", "3", "4"]).await, (0, 0));
        assert_eq!(wire.commit_offset("a \"group\"\n", 3).await, 0);
        let pair = wire.begin("tx", 0).await;
        produce_in(&mut wire, "tx", &pair, &["5", "6", "7"]).await;
        let labels = "{group=\"a \\\"group\\\"\\n\",topic=\"t\",partition=\"0\"}";
        let (behind, hidden) = (
            format!("ottla_group_lag_behind_offsets{labels}"),
            format!("ottla_group_lag_hidden_offsets{labels}"),
        );
        let scraped = Scraped::get(http).await;
        assert_eq!((scraped.value(&behind), scraped.value(&hidden)), (2.0, 3.0));
        let stable = "kafka_cluster_partition_laststableoffsetlag{topic=\"t\",partition=\"0\"}";
        assert_eq!(scraped.value(stable), 3.0);
        assert_eq!(scraped.value("ottla_transactional_ids{state=\"Ongoing\"}"), 1.0);
        assert_eq!(scraped.value("ottla_producers"), 1.0);
        assert_eq!(scraped.value("ottla_groups{type=\"classic\",state=\"Empty\"}"), 1.0);
        assert_eq!(scraped.value("ottla_group_offsets"), 1.0);
        time::sleep(Duration::from_millis(20)).await;
        assert!(Scraped::get(http).await.value("ottla_transaction_oldest_open_seconds") > 0.0);
        assert_eq!(wire.commit("tx", &pair).await, 0);
        let scraped = Scraped::get(http).await;
        assert_eq!(
            (scraped.value(&behind), scraped.value(&hidden)),
            (6.0, 0.0),
            "three records and a marker"
        );
        assert!(scraped.has(&hidden) && !scraped.has(stable));
        assert_eq!(scraped.value("ottla_transactional_ids{state=\"CompleteCommit\"}"), 1.0);
        assert_eq!(scraped.value("ottla_transaction_oldest_open_seconds"), 0.0);
        wire.begin("tx", 0).await;
        wire.begin("tx", 0).await;
        let scraped = Scraped::get(http).await;
        assert_eq!(scraped.value("ottla_transaction_producers_fenced_total"), 2.0);
        broker.shutdown().await;
    });
}

/// Proves: a late request of protocol v1 is counted when it is dropped and its connection closed; one of an older
/// connection whose client waits for the answer, as with a pool of connections, is answered and counted as such.
#[test]
fn late_requests_are_counted() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (broker, http) = start(config(folder.path())).await;
        let (mut pooled, mut old) = (Wire::connect(&broker).await, Wire::connect(&broker).await);
        let mut new = Wire::connect(&broker).await;
        new.create_topic("t", 1).await;
        let pair = new.begin("tx", 0).await;
        let counts = |scraped: &Scraped| {
            let late = scraped.value("ottla_transaction_v1_late_requests_total");
            (late, scraped.value("ottla_transaction_v1_late_requests_let_through_total"))
        };
        assert_eq!(counts(&Scraped::get(http).await), (0.0, 0.0));
        old.send(&end("tx", &pair, true), 3).await;
        assert!(new.speak_until_closed("tx", &pair, &mut old).await, "its connection is closed");
        let scraped = scrape_until(http, |scraped| counts(scraped).0 > 0.0).await;
        assert_eq!(counts(&scraped), (1.0, 0.0));
        let closed = "ottla_connections_closed_total{reason=\"unanswered\"}";
        assert_eq!(scrape_until(http, |scraped| scraped.value(closed) > 0.0).await.value(closed), 1.0);
        assert_eq!(pooled.commit("tx", &pair).await, 0, "it waited for its answer");
        assert_eq!(new.commit("tx", &pair).await, 0, "a repetition");
        assert_eq!(counts(&Scraped::get(http).await), (1.0, 1.0));
        broker.shutdown().await;
    });
}

/// Proves: a parked fetch is counted while it waits.
#[test]
fn parked_fetches_are_counted() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (broker, http) = start(config(folder.path())).await;
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        let mut reader = Wire::connect(&broker).await;
        let fetch = reader.send(&super::wire::fetch_request("t", 0, 0, 60_000), 11).await;
        let scraped = scrape_until(http, |scraped| scraped.value("ottla_fetch_parked") == 1.0).await;
        assert_eq!(scraped.value("ottla_fetch_parked"), 1.0);
        assert_eq!(wire.produce("t", 0, &["x"]).await.0, 0);
        reader.receive::<m::FetchRequest>(fetch, 11).await;
        assert_eq!(
            scrape_until(http, |scraped| scraped.value("ottla_fetch_parked") == 0.0)
                .await
                .value("ottla_fetch_parked"),
            0.0
        );
        broker.shutdown().await;
    });
}
