//! docs/metrics.md and the Grafana board, held against the metric table.

use std::collections::BTreeSet;

use ottla_broker::metrics::docs;
use ottla_broker::metrics::table::{Kind, by_name};
use ottla_env::files;

fn path(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// Proves: docs/metrics.md is what the table makes of it. `OTTLA_WRITE_DOCS=1 cargo test -p ottla-broker documented`
/// writes it anew.
#[test]
fn the_text_is_made_from_the_table() {
    let wanted = docs::markdown();
    if std::env::var_os("OTTLA_WRITE_DOCS").is_some() {
        files::write(&path("docs/metrics.md"), wanted.as_bytes()).expect("written");
    }
    let there = files::read_text(&path("docs/metrics.md"), 1 << 20).expect("it exists");
    assert!(there == wanted, "docs/metrics.md is not what the table says; write it with OTTLA_WRITE_DOCS=1");
}

fn strings<'a>(value: &'a serde_json::Value, key: &str, out: &mut Vec<&'a str>) {
    match value {
        serde_json::Value::Object(fields) => fields.iter().for_each(|(name, value)| match value.as_str() {
            Some(text) if name == key => out.push(text),
            _ => strings(value, key, out),
        }),
        serde_json::Value::Array(values) => values.iter().for_each(|value| strings(value, key, out)),
        _ => {}
    }
}

/// The metrics that an expression names: its words that begin as metrics do.
fn metrics_in(expression: &str) -> Vec<&str> {
    let words = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words
        .filter(|word| ["kafka_", "ottla_", "process_"].iter().any(|start| word.starts_with(start)))
        .collect()
}

/// Proves: every expression of the board names only metrics of the table, histograms by their series and with the
/// functions that fit their kind; panels have ids of their own, a title and a unit, and do not overlap.
#[test]
fn the_board_names_metrics_that_exist() {
    let text = files::read_text(&path("docs/grafana/ottla.json"), 4 << 20).expect("it exists");
    let board: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut expressions = Vec::new();
    strings(&board, "expr", &mut expressions);
    strings(&board["templating"], "query", &mut expressions);
    assert!(expressions.len() > 30, "{} expressions", expressions.len());
    for expression in &expressions {
        for word in metrics_in(expression) {
            let series = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| word.strip_suffix(suffix));
            let of_histogram = series.and_then(by_name);
            match (by_name(word), of_histogram) {
                (Some(metric), _) => {
                    assert!(
                        !matches!(metric.kind, Kind::Histogram { .. }),
                        "{word} has no such series: {expression}"
                    );
                    let is_rate =
                        ["rate(", "increase(", "label_values("].iter().any(|of| expression.contains(of));
                    assert!(is_rate || metric.kind != Kind::Counter, "{word} without a rate: {expression}");
                }
                (None, Some(metric)) => {
                    assert!(
                        matches!(metric.kind, Kind::Histogram { .. }),
                        "{word} is no histogram: {expression}"
                    );
                }
                (None, None) => panic!("{word} is not in the table: {expression}"),
            }
        }
    }
    let panels = board["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_i64().expect("an id")) && panel["title"].is_string(), "{panel}");
        let place = |name: &str| panel["gridPos"][name].as_i64().expect("a place");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(x < 24 && cells.insert((x, y)), "{} overlaps", panel["title"]);
            }
        }
        if panel["type"] != "row" {
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{} has no unit", panel["title"]);
        }
    }
}
