//! The comparison against small definitions of our own: equal ones pass, each kind of difference is named.

use super::*;

const DEFINITION: &str = r#"{
  // a comment with a "quote"
  "apiKey": 3, "type": "request", "listeners": ["broker"], "name": "SampleRequest",
  "validVersions": "2-5", "flexibleVersions": "4+", "latestVersionUnstable": false,
  "fields": [
    { "name": "Url", "type": "string", "versions": "0+", "default": "http://x", "about": "a // in a string" },
    { "name": "Items", "type": "[]Item", "versions": "3+", "nullableVersions": "4+", "ignorable": true, "fields": [
      { "name": "Count", "type": "int32", "versions": "0+", "default": "0x10" },
      { "name": "Epoch", "type": "int64", "versions": "5+", "taggedVersions": "5+", "tag": 0, "default": "-1" }
    ]}
  ]
}"#;

const SCHEMA: &str = r#"
request SampleRequest api 3 versions 2-5 flexible 4+
  Url      string  = "http://x"
  Items    []Item  3+ nullable 4+ ignorable
    Count  int32   = 16
    Epoch  int64   5+ tag 0 = -1
    Own    int8    own
"#;

fn problems(schema: &str) -> Vec<String> {
    let ours = notation::parse(schema).expect("a well-formed schema");
    let definition = Definition::parse(DEFINITION).expect("a well-formed definition");
    compare(&ours, &BTreeMap::from([(definition.name.clone(), definition)])).expect("a known definition")
}

#[test]
fn equal_messages_have_no_differences() {
    // Proves that both spellings of the same facts meet: hexadecimal defaults, ranges beyond the valid versions.
    assert_eq!(problems(SCHEMA), Vec::<String>::new());
}

#[test]
fn every_kind_of_difference_is_named() {
    // Proves that a change of any single fact is found, by its path.
    let changes = [
        ("api 3", "api 4", "SampleRequest:"),
        ("versions 2-5", "versions 2-6", "SampleRequest:"),
        ("flexible 4+", "flexible 5+", "SampleRequest:"),
        ("\"http://x\"", "\"http://y\"", "SampleRequest.Url:"),
        ("Url ", "Uri ", "SampleRequest.Ur"),
        ("3+ nullable", "2+ nullable", "SampleRequest.Items"),
        ("nullable 4+", "nullable 5+", "SampleRequest.Items:"),
        (" ignorable", "", "SampleRequest.Items:"),
        ("int32", "int64", "SampleRequest.Items.Count:"),
        ("= 16", "= 17", "SampleRequest.Items.Count:"),
        ("tag 0", "tag 1", "SampleRequest.Items.Epoch:"),
        ("5+ tag", "4+ tag", "SampleRequest.Items.Epoch:"),
        ("-1", "-2", "SampleRequest.Items.Epoch:"),
        ("int8    own", "int8", "SampleRequest.Items.Own:"),
    ];
    for (from, to, path) in changes {
        let found = problems(&SCHEMA.replacen(from, to, 1));
        assert!(found.iter().any(|problem| problem.starts_with(path)), "{from} -> {to}: {found:?}");
    }
}

#[test]
fn unknown_attributes_are_refused() {
    // Proves that an attribute which could mean something on the wire does not go unnoticed.
    let text = DEFINITION.replacen("\"about\"", "\"encoding\"", 1);
    let definition = Definition::parse(&text).expect("still JSON");
    assert!(definition.facts(&BTreeMap::new()).is_err());
}
