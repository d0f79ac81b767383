//! kill -9 of the real binary under load.

use serde_json::Value;

use crate::support::run;

/// Proves that twenty kills, some during recovery, lose nothing acknowledged, duplicate nothing, tear nothing.
#[test]
fn twenty_rounds() {
    let ran = run(&["prove-kill", "--rounds", "20", "--seed", "1"]);
    let last = ran.stdout.lines().last().unwrap_or_else(|| panic!("no result: {ran:?}"));
    let result: Value = serde_json::from_str(last).expect("an object");
    assert_eq!((ran.code, &result["violations"]), (0, &0.into()), "{ran:?}");
    assert!(result["kills"].as_u64() >= Some(20) && result["committed"].as_u64() > Some(20), "{result}");
}
