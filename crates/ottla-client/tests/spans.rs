//! What a subscriber of `tracing` sees of the client: in a binary of its own, because a subscriber is everybody's.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ottla_broker::broker::Broker;
use ottla_broker::config::Config;
use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, ClientSettings, Consumer, ConsumerSettings, GroupMetadata, OffsetReset, OffsetToCommit, Record,
    TopicPartition, TransactionalProducer, TransactionalSettings,
};
use ottla_env::{spawn, time};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record as Recorded};
use tracing::{Event, Metadata, Subscriber};

/// A span that was made.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    fields: BTreeMap<&'static str, String>,
    parent: Option<u64>,
    handles: usize,
}

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

/// Keeps every span of the client, and the fields of its events.
#[derive(Clone, Default)]
struct Watcher {
    spans: Arc<Mutex<Vec<Seen>>>,
    events: Arc<Mutex<Vec<String>>>,
}

impl Watcher {
    fn spans(&self, name: &str) -> Vec<Seen> {
        let spans = self.spans.lock().expect("nobody panics in here");
        spans.iter().filter(|span| span.name == name).cloned().collect()
    }
}

fn index(id: &Id) -> usize {
    usize::try_from(id.into_u64() - 1).expect("an index")
}

impl Subscriber for Watcher {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("ottla_client")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let parent = attributes.parent().map(Id::into_u64);
        let mut seen = Seen { name: attributes.metadata().name(), parent, handles: 1, ..Seen::default() };
        attributes.record(&mut Fields(&mut seen.fields));
        let mut spans = self.spans.lock().expect("nobody panics in here");
        spans.push(seen);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Recorded<'_>) {
        let mut spans = self.spans.lock().expect("nobody panics in here");
        values.record(&mut Fields(&mut spans[index(id)].fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = BTreeMap::new();
        event.record(&mut Fields(&mut fields));
        self.events.lock().expect("nobody panics in here").push(format!("{fields:?}"));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn clone_span(&self, id: &Id) -> Id {
        self.spans.lock().expect("nobody panics in here")[index(id)].handles += 1;
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut spans = self.spans.lock().expect("nobody panics in here");
        let seen = &mut spans[index(&id)];
        seen.handles -= 1;
        seen.handles == 0
    }
}

/// The span of each transaction: its fields, from the first on.
fn outcomes(watcher: &Watcher) -> Vec<String> {
    let spans = watcher.spans("transaction");
    spans.iter().map(|span| span.fields.get("outcome").cloned().unwrap_or_default()).collect()
}

async fn transactions(settings: &ClientSettings, watcher: &Watcher) {
    let settings = TransactionalSettings::new(settings.clone(), "payments");
    let mut producer = TransactionalProducer::init(settings.clone()).await.expect("taken over");
    let (producer_id, producer_epoch) = producer.producer_id_and_epoch();
    let transaction = producer.begin().await.expect("begun");
    transaction.send(Record::to("t").key("a key").value("the contents")).await.expect("taken");
    let offset = OffsetToCommit::new(TopicPartition::new("t", 0), 3);
    let group = GroupMetadata::without_members("g");
    transaction.send_offsets(&[offset], &group).await.expect("taken");
    assert_eq!(outcomes(watcher), [""], "it has none while it is open");
    transaction.commit().await.expect("committed");
    let fields = watcher.spans("transaction").remove(0).fields;
    assert_eq!(fields["transactional_id"], "payments");
    assert_eq!(fields["producer_id"], producer_id.to_string());
    assert_eq!(fields["producer_epoch"], producer_epoch.to_string());
    assert_eq!(fields["protocol"], "V2");

    let transaction = producer.begin().await.expect("begun");
    transaction.send(Record::to("t").value("the contents")).await.expect("taken");
    transaction.flush().await.expect("written");
    transaction.abort().await.expect("aborted");
    producer.begin().await.expect("begun").commit().await.expect("nothing to do");

    let transaction = producer.begin().await.expect("begun");
    transaction.send(Record::to("t").value("the contents")).await.expect("taken");
    transaction.flush().await.expect("written");
    let other = TransactionalProducer::init(settings).await.expect("taken over");
    transaction.commit().await.expect_err("fenced off");
    drop((producer, other));
    let outcomes = outcomes(watcher);
    assert_eq!(outcomes[..3], ["committed", "aborted", "empty"]);
    assert!(outcomes[3].contains("was fenced off"), "{outcomes:?}");
    let spans = watcher.spans("transaction");
    assert!(spans.iter().all(|span| span.handles == 0), "each is over: {spans:?}");
}

/// Proves that a subscriber sees what the documentation of the crate names: the span of each transaction with its
/// outcome, batches within it, requests, connections, metadata, coordinators, and the phases of a rebalance; and
/// that no key and no value of a record is among any field.
#[test]
fn a_subscriber_sees_the_spans() {
    let watcher = Watcher::default();
    tracing::subscriber::set_global_default(watcher.clone()).expect("the only one");
    spawn::runtime(2).expect("a runtime").block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config {
            listen: "127.0.0.1:0".to_owned(),
            dir: folder.path().display().to_string(),
            log_file_bytes: 4 << 20,
            ..Config::default()
        };
        let broker = Broker::start(config).await.expect("started");
        let client = ClientSettings::new(&broker.local_addr().to_string()).expect("an address");
        let admin = Admin::connect(client.clone()).await.expect("connected");
        admin.create_topic(&NewTopic::new("t", 1)).await.expect("created");
        transactions(&client, &watcher).await;

        let settings =
            ConsumerSettings::new(client.clone()).group_id("readers").offset_reset(OffsetReset::Earliest);
        let mut consumer = Consumer::connect(settings).await.expect("connected");
        consumer.subscribe(&["t"]).await.expect("joining");
        let deadline = time::now() + Duration::from_secs(60);
        let mut read = 0;
        while read == 0 && time::now() < deadline {
            read += consumer.poll(Duration::from_millis(200)).await.expect("read").len();
        }
        assert_eq!(read, 1, "the committed record");
        consumer.close().await.expect("closed");
        broker.shutdown().await;
    });

    let phases: Vec<_> = watcher.spans("rebalance").iter().map(|span| span.fields["phase"].clone()).collect();
    for phase in ["join", "sync", "assigned", "revoked"] {
        assert!(phases.iter().any(|seen| seen == phase), "{phase} in {phases:?}");
    }
    let requests = watcher.spans("request");
    for api in ["Metadata", "Produce", "EndTxn", "Fetch", "JoinGroup"] {
        let seen = requests.iter().find(|span| span.fields["api"].starts_with(api)).expect(api);
        assert_eq!(seen.fields["outcome"], "answered", "{api}");
        assert!(seen.fields.contains_key("correlation_id") && seen.fields.contains_key("node"), "{api}");
    }
    let batches = watcher.spans("batch");
    let written = batches.iter().find(|span| span.fields["outcome"] == "written").expect("one was written");
    let parent = written.parent.expect("within its transaction");
    let spans = watcher.spans.lock().expect("nobody panics in here").clone();
    assert_eq!(spans[usize::try_from(parent - 1).expect("an index")].name, "transaction");
    for name in ["connection", "metadata", "coordinator"] {
        assert!(!watcher.spans(name).is_empty(), "{name}");
    }
    let events = watcher.events.lock().expect("nobody panics in here").join("\n");
    let told = format!("{spans:?}\n{events}");
    assert!(!told.contains("the contents") && !told.contains("a key"), "contents of records are nobody's");
}
