//! The command line against a started broker.

use serde_json::{Value, json};

use crate::support::{Broker, run, run_with};

/// Proves the life of a topic on the command line, for people and for machines, with its exit codes.
#[test]
fn topics() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders", "-p", "3", "--config", "cleanup.policy=compact"], "");
    let again = broker.ottla(&["topic", "create", "orders"], "");
    assert!(again.code == 1 && again.stderr.contains("TOPIC_ALREADY_EXISTS"), "{again:?}");
    broker.ok(&["topic", "create", "orders", "--if-not-exists"], "");
    let bad = broker.ottla(&["topic", "create", "bad/name"], "");
    assert_eq!(bad.code, 1, "{bad:?}");
    let list = broker.ok(&["topic", "list", "--json"], "");
    let topic: Value = serde_json::from_str(list.trim()).expect("one object");
    assert_eq!((&topic["topic"], &topic["partitions"]), (&json!("orders"), &json!(3)));
    assert!(broker.ok(&["topic", "list", "--all"], "").contains("__transaction_state"));
    let described: Value =
        serde_json::from_str(&broker.ok(&["topic", "describe", "orders", "--json"], "")).expect("one object");
    assert_eq!(described["configs"]["cleanup.policy"], json!("compact"));
    assert_eq!(described["partitions"].as_array().map(Vec::len), Some(3));
    broker.ok(&["topic", "delete", "orders"], "");
    let gone = broker.ottla(&["topic", "describe", "orders"], "");
    assert!(gone.code == 1 && gone.stderr.contains("does not exist"), "{gone:?}");
}

/// Proves that what is produced from lines and JSON comes out again: keys, headers, offsets, order, counts.
#[test]
fn produce_and_consume() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "t", "-p", "1"], "");
    broker.ok(&["produce", "t", "-k", ":", "-H", "from=test"], "a:1\nb:2\n");
    let read = broker.ok(&["consume", "t", "--from", "beginning", "--until-end", "-k", "-H", "-o"], "");
    assert_eq!(read, "0:0\tfrom=test\ta\t1\n0:1\tfrom=test\tb\t2\n");
    let line = r#"{"key":"c","value":"3","headers":[["x","y"]],"timestamp":1000}"#;
    let wrote = broker.ok(&["produce", "t", "--format", "json", "--json"], line);
    assert_eq!(wrote.trim(), r#"{"records":1,"transactions":0}"#);
    let read = broker.ok(&["consume", "t/0", "--from", "2", "-n", "1", "--json"], "");
    let record: Value = serde_json::from_str(read.trim()).expect("one object");
    assert_eq!((&record["offset"], &record["timestamp"]), (&json!(2), &json!(1000)));
    assert_eq!(record["headers"], json!([["x", "y"]]));
    // what is printed can be fed back
    broker.ok(&["produce", "t", "--format", "json"], &read);
    assert_eq!(broker.ok(&["consume", "t", "--from", "3", "--until-end"], ""), "3\n");
    let bytes = r#"{"key_base64":"/w==","value_base64":"//4=","headers":[["h",{"base64":"/w=="}]]}"#;
    broker.ok(&["topic", "create", "bytes", "-p", "1"], "");
    broker.ok(&["produce", "bytes", "--format", "json"], bytes);
    let first = broker.ok(&["consume", "bytes", "--from", "beginning", "-e", "--json"], "");
    broker.ok(&["produce", "bytes", "--format", "json"], &first);
    let second = broker.ok(&["consume", "bytes", "--from", "1", "-e", "--json"], "");
    let fields = |line: &str| {
        let record: Value = serde_json::from_str(line).expect("one object");
        ["key_base64", "value_base64", "headers"].map(|name| record[name].clone())
    };
    assert_eq!(fields(&first), [json!("/w=="), json!("//4="), json!([["h", { "base64": "/w==" }]])]);
    assert_eq!(fields(&second), fields(&first), "bytes that are no text survive the way back too");
    for codec in ["gzip", "snappy", "lz4", "zstd"] {
        broker.ok(&["produce", "t", "-X", &format!("compression.type={codec}")], &format!("{codec}\n"));
    }
    assert_eq!(broker.ok(&["consume", "t", "--from", "4", "-e"], ""), "gzip\nsnappy\nlz4\nzstd\n");
    assert_eq!(broker.ok(&["consume", "t", "--from", "end", "-e"], ""), "");
    assert_eq!(broker.ok(&["consume", "t", "--from", "-1h", "-e", "-n", "1"], ""), "1\n", "by time");
}

/// Proves that transactions from the command line are all or nothing to readers, and who holds them back is named
/// and can be ended.
#[test]
fn transactions() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "t", "-p", "1"], "");
    broker.ok(&["produce", "t", "--transactional-id", "x"], "a\nb\n");
    broker.ok(&["produce", "t", "--transactional-id", "x", "--abort"], "c\n");
    broker.ok(&["produce", "t", "--transactional-id", "x", "--transaction-records", "1"], "d\ne\n");
    assert_eq!(broker.ok(&["consume", "t", "--from", "beginning", "-e"], ""), "a\nb\nd\ne\n");
    let all = broker.ok(&["consume", "t", "--from", "beginning", "-e", "--isolation", "uncommitted"], "");
    assert_eq!(all, "a\nb\nc\nd\ne\n");
    assert!(broker.ok(&["txn", "why", "t"], "").contains("nobody"));
    let listed: Value = serde_json::from_str(&broker.ok(&["txn", "list", "--json"], "")).expect("one object");
    assert_eq!((&listed["transactional_id"], &listed["state"]), (&json!("x"), &json!("CompleteCommit")));
    let described: Value =
        serde_json::from_str(&broker.ok(&["txn", "describe", "x", "--json"], "")).expect("one object");
    assert_eq!(described["partitions"], json!([]));
    let unknown = broker.ottla(&["txn", "describe", "y"], "");
    assert!(unknown.code == 1 && unknown.stderr.contains("TRANSACTIONAL_ID_NOT_FOUND"), "{unknown:?}");
}

/// Proves that a wrong command line or setting is exit code 2 and names what is wrong, and a broker that is away is
/// exit code 1 and says so.
#[test]
fn mistakes() {
    for (arguments, word) in [
        (&["serve", "--set", "no.such.setting=1"][..], "no.such.setting"),
        (&["serve", "--set", "num.partitions=0"], "num.partitions"),
        (&["serve", "--config", "/nonexistent/file"], "/nonexistent/file"),
        (&["consume", "t", "-X", "isolation.level=serializable"], "isolation.level"),
        (&["produce", "t", "-X", "acks=0"], "acks"),
        (&["produce", "t", "--bootstrap", "nowhere"], "nowhere"),
        (&["consume", "t", "--from", "soon"], "soon"),
        (&["no-such-command"], "no-such-command"),
        (&["txn", "list", "--state", "Nonsense"], "Ongoing"),
        (&["group", "list", "--state", "Nonsense"], "Stable"),
        (&["group", "list", "--type", "Nonsense"], "consumer"),
        (&["serve", "--listen", "nonsense"], "listen"),
        (&["serve", "--http", "127.0.0.1"], "http.listen"),
        (&["serve", "--advertise", "events:port"], "advertised.listener"),
        (&["serve", "--print-config", "--log-level", "nonsense"], "nonsense"),
        (&["serve", "--print-config", "--log-level", "info,nonsense"], "nonsense"),
    ] {
        let ran = run(arguments);
        assert!(ran.code == 2 && ran.stderr.contains(word), "{arguments:?}: {ran:?}");
    }
    let environment = run_with(&["serve", "--print-config"], "", &[("OTTLA_NUM_PARTITIONS", "many")]);
    assert!(environment.code == 2 && environment.stderr.contains("OTTLA_NUM_PARTITIONS"), "{environment:?}");
    for (value, code) in [("verbose", 2), ("info,[", 2), ("", 0), ("info,ottla_core=debug", 0)] {
        let ran = run_with(&["serve", "--print-config"], "", &[("OTTLA_LOG", value)]);
        assert!(ran.code == code && (code == 0 || ran.stderr.contains("OTTLA_LOG")), "{value}: {ran:?}");
    }
    let away = run(&["topic", "list", "-b", "127.0.0.1:1", "-X", "default.api.timeout.ms=200"]);
    assert!(away.code == 1 && away.stderr.contains("127.0.0.1:1"), "{away:?}");
    let long = run(&["topic", "list", "-b", "127.0.0.1:1", "-X", "default.api.timeout.ms=4000"]);
    assert!(long.code == 1 && long.stderr.contains("no answer from 127.0.0.1:1 yet"), "{long:?}");
    let levels = ["serve", "--print-config", "--log-level", "warn,ottla_core=debug"];
    assert_eq!(run(&levels).code, 0, "a filter of modules is one");
}

/// Proves the order of settings, that a printed configuration can be read back, and the list of all settings.
#[test]
fn configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ottla.toml");
    let environment = [("OTTLA_NODE_ID", "7"), ("OTTLA_LOG", "warn"), ("OTTLA_BOOTSTRAP", "x:1")];
    let printed = run_with(&["serve", "--print-config", "-o", "num.partitions=5"], "", &environment);
    assert!(
        printed.stdout.contains("\"num.partitions\" = 5\n") && printed.stdout.contains("\"node.id\" = 7\n")
    );
    ottla_env::files::write(&file, printed.stdout.as_bytes()).expect("written");
    let path = file.to_str().expect("text");
    let again = run(&["serve", "--config", path, "--print-config"]);
    assert_eq!((again.code, again.stdout), (0, printed.stdout));
    let all = run(&["serve", "--settings"]);
    assert!(all.code == 0 && all.stdout.contains("transaction.max.timeout.ms"), "{all:?}");
}

/// Proves that a second broker on the same folder is refused and names the first, and that SIGTERM ends one in order.
#[test]
fn one_broker_per_folder() {
    let mut broker = Broker::start();
    let data = broker.data();
    let second = run(&["serve", "--data", data.to_str().expect("text"), "--listen", "127.0.0.1:0"]);
    assert!(second.code == 1 && second.stderr.contains(&broker.pid().to_string()), "{second:?}");
    assert!(broker.terminate());
}

/// Proves that settings are set, shown, tried and unset, for topics, brokers and groups, and that a wrong one is
/// refused with the broker's words and changes nothing.
#[test]
fn settings() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "t", "-p", "1"], "");
    let shown = |arguments: &[&str]| broker.ok(&[&["config", "describe"], arguments].concat(), "");
    broker.ok(&["config", "set", "topic", "t", "retention.ms=1000", "cleanup.policy=compact"], "");
    let lines = shown(&["topic", "t", "--json"]);
    let entries: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let retention = entries.iter().find(|entry| entry["name"] == "retention.ms").expect("it was set");
    assert_eq!((&retention["value"], &retention["source"]), (&json!("1000"), &json!("DYNAMIC_TOPIC_CONFIG")));
    let bad = broker.ottla(&["config", "set", "topic", "t", "retention.ms=2000", "no.such.setting=1"], "");
    assert!(bad.code == 1 && bad.stderr.contains("INVALID_CONFIG"), "{bad:?}");
    broker.ok(&["config", "set", "topic", "t", "retention.ms=3000", "--dry-run"], "");
    assert!(shown(&["topic", "t"]).contains("1000"), "nothing of either was changed");
    broker.ok(&["config", "unset", "topic", "t", "retention.ms"], "");
    assert!(!shown(&["topic", "t"]).contains("retention.ms"));
    assert!(shown(&["topic", "t", "--all"]).contains("retention.ms"));
    broker.ok(&["topic", "alter", "t", "--partitions", "3", "--config", "retention.ms=5000"], "");
    let described: Value =
        serde_json::from_str(&broker.ok(&["topic", "describe", "t", "--json"], "")).expect("one object");
    assert_eq!(described["partitions"].as_array().map(Vec::len), Some(3));
    assert_eq!(described["configs"]["retention.ms"], json!("5000"));
    let fewer = broker.ottla(&["topic", "alter", "t", "--partitions", "2"], "");
    assert!(fewer.code == 1 && fewer.stderr.contains("INVALID_PARTITIONS"), "{fewer:?}");
    assert!(broker.ok(&["config", "list"], "").contains("t"));
    let absent = broker.ottla(&["config", "describe", "broker", "7"], "");
    assert!(absent.code == 1 && absent.stderr.contains("no broker 7, it has 1"), "at once: {absent:?}");
    let absent = broker.ottla(&["config", "set", "broker", "7", "log.retention.ms=1000"], "");
    assert!(absent.code == 1 && absent.stderr.contains("no broker 7, it has 1"), "at once: {absent:?}");
    assert_eq!(broker.ottla(&["config", "describe", "broker", "x"], "").code, 2);
}

/// Proves what is told of the cluster, and that deleting records moves the start of a partition.
#[test]
fn the_cluster() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "t", "-p", "1"], "");
    broker.ok(&["produce", "t"], "a\nb\nc\n");
    let cluster: Value =
        serde_json::from_str(&broker.ok(&["cluster", "describe", "--json"], "")).expect("one object");
    assert_eq!(cluster["brokers"].as_array().map(Vec::len), Some(1));
    assert!(broker.ok(&["cluster", "features"], "").contains("transaction.version"));
    assert!(broker.ok(&["cluster", "log-dirs"], "").contains("__consumer_offsets"));
    let quorum: Value =
        serde_json::from_str(&broker.ok(&["cluster", "quorum", "--json"], "")).expect("one object");
    assert_eq!(quorum["leader"], cluster["controller"]);
    let start = broker.ok(&["topic", "delete-records", "t/0", "--before", "2", "--json"], "");
    assert_eq!(serde_json::from_str::<Value>(&start).expect("JSON")["log_start_offset"], json!(2));
    assert_eq!(broker.ok(&["consume", "t", "--from", "beginning", "-e"], ""), "c\n");
    let many = broker.ottla(&["topic", "delete", "t", "no-such", "--yes"], "");
    assert!(many.code == 1 && many.stderr.contains("no-such"), "one error does not hide the other's success");
    assert_eq!(broker.ottla(&["topic", "describe", "t"], "").code, 1);
}

/// Proves that each shell gets a script that knows our commands.
#[test]
fn completions() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]);
        assert!(script.code == 0 && script.stdout.contains("find-hanging"), "{shell}");
    }
    assert_eq!(run(&["completions", "tcl"]).code, 2);
}
