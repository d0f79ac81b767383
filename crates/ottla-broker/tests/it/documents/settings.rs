//! docs/settings.md: the settings of the broker, of topics and of groups, and those of Kafka's that are not there.

use std::fmt::Write;

use ottla_broker::config::{Listed, listed};
use ottla_core::cluster::config::{
    ConfigType, Definition, Update, group_definition, topic_definition, topic_definitions,
};

use super::{assert_is, read};

/// What Kafka 4.4 described when it was asked (`compat/suite-settings --write`).
const KAFKA: &str = "compat/kafka-4.4.0-settings.tsv";

const HEAD: &str = "# Settings

Every setting, made from the tables of the code (`ottla-broker/src/config.rs`,
`ottla-core/src/cluster/config/`) and compared with what Apache Kafka 4.4.0 describes
([compat/kafka-4.4.0-settings.tsv](../compat/kafka-4.4.0-settings.tsv)). Do not edit it: see
`ottla-broker/tests/it/documents.rs`.

A broker takes a setting from `--set NAME=VALUE`, else from the environment (`OTTLA_` and the name in capitals, dots
as underscores), else from the file (`--config`, TOML: `\"name\" = value`), else its default. Names are Kafka's where
the meaning is; an unknown name or a value outside of its bound is refused. `ottla serve --settings` lists them,
`--print-config` shows what is in force.

What may change \"any time\" is changed by IncrementalAlterConfigs or AlterConfigs on the broker (`kafka-configs
--entity-type brokers`), for this broker or with `--entity-default` for every one; it is written to the log before
it is answered, holds at once and after a restart, and goes over what the broker was started with, that of one broker
over that of every one. Taken away, what is below shows again. DescribeConfigs tells where each value comes from.
Unlike Kafka, Ottla refuses names that it does not know, as there are no plugins that could read them.

The unit is the end of the name: `.ms`, `.minutes`, `.hours`, `.bytes`. Lists have commas between their elements.

`retention.ms` and `retention.bytes` delete whole units, as Kafka deletes whole segments. A unit is what one sealed file
of the log (`log.file.bytes`) holds of the partition, or a batch of the file in use; by size also a batch of the file at
which the limit falls. It is as old as its largest timestamp, also when that lies in the future; without timestamps it
is as old as its file. The space comes back once two snapshots (`snapshot.log.bytes`) contain what was deleted.

Compaction (`cleanup.policy=compact`) goes through what sealed files of the log hold of a partition, up to the last
stable offset. What is in the file in use is left alone, as Kafka leaves the active segment, until the file is full, or
until the partition has `segment.bytes` there, or something there is older than `segment.ms` or
`max.compaction.lag.ms`, and the partition is due: then that file is sealed early, at most once in
`log.cleaner.backoff.ms`. Internal topics are compacted with a dirty ratio of 0.5 at most, and their tombstones go a
minute after a pass has met them.

\"Without effect\" is said of what means nothing here and is taken so that tools go on.

";

/// Defaults that are not Kafka's, with the reason.
const OTHER_DEFAULTS: &[(&str, &str)] = &[
    ("default.replication.factor", ""),
    ("max.connections", "a bound that memory holds"),
    ("offsets.topic.replication.factor", "Kafka's 3 cannot be had from one broker"),
    ("queued.max.request.bytes", "Kafka's -1 is no bound at all"),
    ("transaction.state.log.min.isr", "Kafka's 2 cannot be had from one broker"),
    ("transaction.state.log.replication.factor", "Kafka's 3 cannot be had from one broker"),
];

/// Settings of Kafka's brokers that are shown under Kafka's name and follow from others here.
const SHOWN: &[(&str, &str)] = &[
    ("advertised.listeners", "follows from `listen` and `advertised.listener`"),
    ("broker.id", "follows from `node.id`"),
    ("listeners", "follows from `listen`"),
    ("log.dirs", "follows from `dir`"),
];

/// Settings of Kafka's brokers that are not there, by what their names begin with; the first that fits counts.
#[rustfmt::skip] // a table
const ABSENT: &[(&[&str], &str)] = &[
    (&["ssl.", "sasl.", "security.", "principal.builder.class", "authorizer.", "delegation.token.",
       "connection.failed.authentication.delay.ms", "connections.max.reauth.ms", "listener.security.protocol.map",
       "early.start.listeners"],
        "there is no TLS, authentication or authorization yet"),
    (&["quota.", "client.quota.", "controller.quota.", "alter.log.dirs.replication.quota.", "replication.quota."],
        "there are no quotas yet"),
    (&["replica.", "num.replica.", "leader.imbalance.", "auto.leader.rebalance.enable", "controlled.shutdown.",
       "broker.heartbeat.", "broker.session.", "broker.rack", "inter.broker.", "follower.fetch."],
        "there is one broker: nothing is replicated, and nobody else leads"),
    (&["controller.", "metadata.", "process.roles", "initial.broker.registration.timeout.ms", "request.timeout.ms",
       "socket.connection.setup."],
        "there is no quorum of controllers; the control log is part of the one log"),
    (&["remote."], "there is no tiered storage"),
    (&["group.share.", "share."], "share groups are not there"),
    (&["group.streams."], "groups of Kafka Streams' own protocol are not there"),
    (&["errors.deadletterqueue."], "dead letter queues are of share groups"),
    (&["log.cleaner."], "the cleaner is one thread, and reads as everybody reads"),
    (&["log.dir", "log.flush.offset.", "log.flush.start.offset.", "log.dir.failure.timeout.ms", "cordoned.log.dirs",
       "num.recovery.threads.per.data.dir"],
        "one log in one folder, with files of `log.file.bytes`, synced before every answer, recovered in one pass"),
    (&["offsets.topic.segment.bytes", "transaction.state.log.segment.bytes", "offsets.load.buffer.size",
       "transaction.state.log.load.buffer.size", "offsets.topic.compression.codec"],
        "coordinators live in memory and in the one log; their topics have no files to load from"),
    (&["offsets.commit.timeout.ms", "add.partitions.to.txn.retry."],
        "a decision is one write; there is no other broker or coordinator to wait for"),
    (&["group.coordinator."], "groups are decided by the shard's one thread; all their protocols that exist are on"),
    (&["group.consumer.assignment.interval.ms", "group.consumer.max.assignment.interval.ms",
       "group.consumer.min.assignment.interval.ms"],
        "assignments are made at the heartbeat that needs them"),
    (&["num.io.threads", "num.network.threads", "queued.max.requests", "socket.listen.backlog.size",
       "socket.receive.buffer.bytes", "socket.send.buffer.bytes"],
        "threads are `network.threads` and the shard's two; requests are bounded by bytes; sockets are the system's"),
    (&["fetch.purgatory.", "producer.purgatory.", "delete.records.purgatory."],
        "what waits is woken when its partition moves; there is nothing to purge"),
    (&["metric", "kafka.metrics.", "telemetry.max.bytes"], "metrics are read over HTTP (`http.listen`)"),
    (&["alter.config.policy.class.name", "create.topic.policy.class.name", "config.providers",
       "max.request.partition.size.limit"],
        "there are no plugins; fixed bounds are in the code's `limits`"),
    (&["transaction.two.phase.commit.enable"], "two-phase commit (KIP-939) is not there"),
];

/// Settings of Kafka's groups that are not there, by what their names begin with.
const ABSENT_OF_GROUPS: &[(&str, &str)] = &[
    ("consumer.assignment.interval.ms", "assignments are made at the heartbeat that needs them"),
    ("errors.deadletterqueue.", "dead letter queues are of share groups"),
    ("share.", "share groups are not there"),
    ("streams.", "groups of Kafka Streams' own protocol are not there"),
];

/// One setting of Kafka's.
struct Theirs {
    scope: String,
    name: String,
    kind: String,
    default: String,
    change: String,
}

fn kafka() -> Vec<Theirs> {
    let row = |line: &str| {
        let mut fields = line.split('\t').map(str::to_owned);
        let mut next = || fields.next().expect("five fields");
        Theirs { scope: next(), name: next(), kind: next(), default: next(), change: next() }
    };
    read(KAFKA).lines().skip(1).map(row).collect()
}

fn type_name(kind: ConfigType) -> &'static str {
    match kind {
        ConfigType::Boolean => "boolean",
        ConfigType::String => "string",
        ConfigType::Int => "int",
        ConfigType::Short => "short",
        ConfigType::Long => "long",
        ConfigType::Double => "double",
        ConfigType::List => "list",
    }
}

/// Why a setting of Kafka's brokers is not there.
fn absent(name: &str) -> Option<&'static str> {
    let begins = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    ABSENT.iter().find(|(starts, _)| begins(starts)).map(|(_, why)| *why)
}

fn absent_of_groups(name: &str) -> Option<&'static str> {
    ABSENT_OF_GROUPS.iter().find(|(start, _)| name.starts_with(start)).map(|(_, why)| *why)
}

fn row(text: &mut String, setting: &Listed) {
    let Listed { name, about, bound, .. } = setting;
    let default = match setting.default.as_deref() {
        None => "none".to_owned(),
        Some("") => "empty".to_owned(),
        Some(value) => format!("`{value}`"),
    };
    let change = match setting.update {
        Update::ReadOnly => "at a start",
        Update::PerBroker => "any time, of one broker",
        Update::ClusterWide => "any time",
    };
    let other = OTHER_DEFAULTS.iter().find(|(other, _)| other == name).map_or("", |(_, why)| *why);
    let other =
        if other.is_empty() { String::new() } else { format!(" Kafka's default is another: {other}.") };
    let kind = type_name(setting.kind);
    let about = sentence(about);
    writeln!(text, "| `{name}` | {kind} | {default} | {bound} | {change} | {about}{other} |")
        .expect("to memory");
}

/// With a capital and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let end = if text.ends_with('.') { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}

fn document() -> String {
    let mut text = HEAD.to_owned();
    text += "## The broker\n\n| setting | type | default | what it may be | may change | what it does |\n";
    text += "|---|---|---|---|---|---|\n";
    listed().iter().for_each(|setting| row(&mut text, setting));
    text += "\nShown by DescribeConfigs under Kafka's names as well:\n\n";
    for (name, follows) in SHOWN {
        writeln!(text, "- `{name}`: {follows}").expect("to memory");
    }
    text += "\n## Topics\n\nSet when the topic is made, or any time. What was not set follows the broker's setting in the last
column, and so changes with it.

| setting | type | default | what it may be | what it does | broker's setting |\n|---|---|---|---|---|---|\n";
    for definition in topic_definitions() {
        let Definition { name, kind, rule, documentation, .. } = definition;
        let default =
            if definition.default.is_empty() { "empty" } else { &format!("`{}`", definition.default) };
        let synonym = definition.synonym.map_or("none".to_owned(), |synonym| format!("`{synonym}`"));
        let kind = type_name(*kind);
        writeln!(text, "| `{name}` | {kind} | {default} | {rule} | {documentation} | {synonym} |")
            .expect("to memory");
    }
    text += "\nBatches are compressed anew when `compression.type` names another codec than they were sent in. Levels count for
gzip and zstd; lz4 and snappy have one.

## Groups\n\n| setting | type | default | what it does | broker's setting |\n|---|---|---|---|---|\n";
    for theirs in kafka().iter().filter(|theirs| theirs.scope == "group") {
        let Some(definition) = group_definition(&theirs.name) else { continue };
        let Definition { name, kind, default, documentation, .. } = definition;
        let (kind, synonym) = (type_name(*kind), definition.synonym.unwrap_or_default());
        writeln!(text, "| `{name}` | {kind} | `{default}` | {documentation} | `{synonym}` |")
            .expect("to memory");
    }
    text + &document_absent()
}

fn document_absent() -> String {
    let mut text = "\n## Kafka's settings that are not there\n\n".to_owned();
    let ours = listed();
    let missing: Vec<Theirs> = kafka().into_iter().filter(|theirs| !is_ours(&ours, theirs)).collect();
    let of_brokers = missing.iter().filter(|theirs| theirs.scope == "broker");
    for (_, why) in ABSENT {
        let names = of_brokers.clone().filter(|theirs| absent(&theirs.name) == Some(*why));
        let names: Vec<String> = names.map(|theirs| format!("`{}`", theirs.name)).collect();
        writeln!(text, "- {}: {}", sentence(why).trim_end_matches('.'), names.join(", ")).expect("to memory");
    }
    text += "\nOf groups:\n\n";
    for (start, why) in ABSENT_OF_GROUPS {
        let names = missing.iter().filter(|theirs| theirs.scope == "group" && theirs.name.starts_with(start));
        let names: Vec<String> = names.map(|theirs| format!("`{}`", theirs.name)).collect();
        writeln!(text, "- {}: {}", sentence(why).trim_end_matches('.'), names.join(", ")).expect("to memory");
    }
    text
}

fn is_ours(ours: &[Listed], theirs: &Theirs) -> bool {
    match theirs.scope.as_str() {
        "topic" => topic_definition(&theirs.name).is_some(),
        "group" => group_definition(&theirs.name).is_some(),
        _ => {
            ours.iter().any(|setting| setting.name == theirs.name)
                || SHOWN.iter().any(|(name, _)| *name == theirs.name)
        }
    }
}

/// Proves: docs/settings.md is what the tables say.
#[test]
fn settings_are_documented() {
    assert_is("docs/settings.md", &document());
}

/// Proves: a setting under a name of Kafka's has Kafka's type and default, and may change when Kafka's may, but for
/// the defaults that are listed; every setting of Kafka's that is not there has a reason, and no reason is empty.
#[test]
fn settings_are_kafkas() {
    let ours = listed();
    for theirs in kafka() {
        let name = theirs.name.as_str();
        let of_topic = topic_definition(name).filter(|_| theirs.scope == "topic");
        let of_group = group_definition(name).filter(|_| theirs.scope == "group");
        if let Some(definition) = of_topic.or(of_group) {
            assert_eq!(
                (type_name(definition.kind), definition.default),
                (&*theirs.kind, &*theirs.default),
                "{name}"
            );
        } else if theirs.scope == "broker"
            && let Some(setting) = ours.iter().find(|one| one.name == name)
        {
            assert_eq!(type_name(setting.kind), theirs.kind, "{name}");
            let is_dynamic = setting.update != Update::ReadOnly;
            assert_eq!(is_dynamic, theirs.change != "start", "{name} may change: {}", theirs.change);
            assert_eq!(setting.update == Update::PerBroker, theirs.change == "broker", "{name}");
            let default = setting.default.as_deref().unwrap_or("-");
            let is_listed = OTHER_DEFAULTS.iter().any(|(other, _)| *other == name) || name == "node.id";
            assert!(
                default == theirs.default || is_listed,
                "{name}: {default}, and Kafka has {}",
                theirs.default
            );
        }
        let is_absent = match theirs.scope.as_str() {
            "topic" => false,
            "group" => absent_of_groups(name).is_some(),
            _ => absent(name).is_some(),
        };
        assert!(
            is_ours(&ours, &theirs) || is_absent,
            "{} setting {name} is not there, without a reason",
            theirs.scope
        );
    }
    for (starts, why) in ABSENT {
        let used = kafka().iter().any(|theirs| {
            theirs.scope == "broker" && !is_ours(&ours, theirs) && absent(&theirs.name) == Some(*why)
        });
        assert!(used, "{starts:?}: nothing of Kafka's is absent for that");
    }
}
