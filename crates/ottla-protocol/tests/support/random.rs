//! Random bodies straight from the schema files: an encoder that shares no code with the generated one.
//!
//! Every field of the version gets a random value; tagged fields are there or not. A tagged field that happens to
//! hold its default is left out, since no encoder writes it.

use self::notation::{Field, Kind, Message, Struct, Type};

#[path = "../../build/notation.rs"]
#[allow(dead_code)] // shared with the build script, which uses all of it
mod notation;

/// A message of the schema.
pub(crate) struct Definition(Message);

/// All messages of the schema.
pub(crate) fn definitions() -> Vec<Definition> {
    let files = [
        include_str!("../../schema/cluster.schema"),
        include_str!("../../schema/consumer_protocol.schema"),
        include_str!("../../schema/control.schema"),
        include_str!("../../schema/data.schema"),
        include_str!("../../schema/group_records.schema"),
        include_str!("../../schema/groups.schema"),
        include_str!("../../schema/headers.schema"),
        include_str!("../../schema/markers.schema"),
        include_str!("../../schema/security.schema"),
        include_str!("../../schema/share.schema"),
        include_str!("../../schema/share_records.schema"),
        include_str!("../../schema/streams.schema"),
        include_str!("../../schema/topics.schema"),
        include_str!("../../schema/transaction_records.schema"),
        include_str!("../../schema/transactions.schema"),
    ];
    let all = files.into_iter().flat_map(|text| notation::parse(text).expect("the build parsed it too"));
    all.map(Definition).collect()
}

/// A small deterministic generator (SplitMix64); the seed comes from proptest.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

impl Definition {
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// API key of a request or response.
    pub(crate) fn api(&self) -> Option<i16> {
        [Kind::Request, Kind::Response].contains(&self.0.kind).then_some(self.0.number).flatten()
    }

    pub(crate) fn is_request(&self) -> bool {
        self.0.kind == Kind::Request
    }

    /// First and last version, inclusive.
    pub(crate) fn versions(&self) -> std::ops::RangeInclusive<i16> {
        self.0.versions.first..=self.0.versions.last
    }

    /// A random body in that version.
    pub(crate) fn body(&self, version: i16, dice: &mut Dice) -> Vec<u8> {
        let mut out = Vec::new();
        let flexible = self.0.flexible.contains(version);
        let encoder = Encoder { message: &self.0, version, flexible };
        encoder.structure(self.0.structs.first().expect("a top structure"), dice, &mut out, 0);
        out
    }
}

struct Encoder<'a> {
    message: &'a Message,
    version: i16,
    flexible: bool,
}

impl Encoder<'_> {
    fn structure(&self, structure: &Struct, dice: &mut Dice, out: &mut Vec<u8>, depth: usize) {
        let here = |field: &&Field| field.versions.contains(self.version);
        for field in structure.fields.iter().filter(here).filter(|f| f.tag.is_none()) {
            self.field(field, dice, out, depth, field.nullable.contains(self.version));
        }
        if !self.flexible {
            return;
        }
        let mut tags: Vec<(u32, Vec<u8>)> = Vec::new();
        for field in structure.fields.iter().filter(here) {
            let Some(tag) = field.tag else { continue };
            let mut body = Vec::new();
            // Null differs from the default unless that is null too.
            let nullable = field.nullable.contains(self.version) && field.default.as_deref() != Some("null");
            self.field(field, dice, &mut body, depth, nullable);
            if dice.one_in(2) && !self.is_default(field, &body) {
                tags.push((tag, body));
            }
        }
        if dice.one_in(8) {
            tags.push((1000 + dice.below(1000) as u32, vec![7; dice.below(4) as usize]));
        }
        tags.sort();
        varint(tags.len() as u32, out);
        for (tag, body) in tags {
            varint(tag, out);
            varint(body.len() as u32, out);
            out.extend(body);
        }
    }

    fn field(&self, field: &Field, dice: &mut Dice, out: &mut Vec<u8>, depth: usize, nullable: bool) {
        let null = nullable && dice.one_in(4);
        match &field.kind {
            Type::Struct(_) if null => out.push(if field.tag.is_some() { 0 } else { 255 }),
            Type::Struct(name) => {
                if nullable {
                    out.push(1);
                }
                self.structure(self.message.find(name).expect("checked by the parser"), dice, out, depth);
            }
            Type::Array(_) if null => self.length(None, false, out),
            Type::Array(element) => {
                let count = dice.below(if depth > 2 { 2 } else { 4 }) as usize;
                self.length(Some(count), false, out);
                for _ in 0..count {
                    match element.as_ref() {
                        Type::Struct(name) => {
                            let structure = self.message.find(name).expect("checked by the parser");
                            self.structure(structure, dice, out, depth + 1);
                        }
                        Type::Plain(name) => self.plain(name, false, dice, out),
                        Type::Array(_) => unreachable!("Kafka has no arrays of arrays"),
                    }
                }
            }
            Type::Plain(name) if field.inflexible => {
                Encoder { flexible: false, ..*self }.plain(name, null, dice, out);
            }
            Type::Plain(name) => self.plain(name, null, dice, out),
        }
    }

    fn plain(&self, name: &str, null: bool, dice: &mut Dice, out: &mut Vec<u8>) {
        let width = match name {
            "bool" => return out.push(dice.below(2) as u8),
            "int8" => 1,
            "int16" | "uint16" => 2,
            "int32" | "uint32" => 4,
            "float64" => return out.extend((dice.next() as i32 as f64 / 7.0).to_be_bytes()),
            "int64" => 8,
            "uuid" => 16,
            "string" | "bytes" | "records" => {
                let short = name == "string";
                if null {
                    return self.length(None, short, out);
                }
                let length = if dice.one_in(16) { dice.below(300) } else { dice.below(6) } as usize;
                self.length(Some(length), short, out);
                return out.extend((0..length).map(|_| b'a' + dice.below(26) as u8));
            }
            other => unreachable!("the parser knows no type {other}"),
        };
        // Often small, so that values near the defaults come up.
        let small = dice.one_in(2);
        let value = if small {
            i128::from(dice.below(5) as i64 - 2)
        } else {
            i128::from(dice.next() as i64) << dice.below(64)
        };
        out.extend(&value.to_be_bytes()[16 - width..]);
    }

    fn length(&self, length: Option<usize>, short: bool, out: &mut Vec<u8>) {
        if self.flexible {
            varint(length.map_or(0, |length| length as u32 + 1), out);
        } else if short {
            out.extend(length.map_or(-1, |length| length as i16).to_be_bytes());
        } else {
            out.extend(length.map_or(-1, |length| length as i32).to_be_bytes());
        }
    }

    /// Whether a tagged field's body says its default.
    fn is_default(&self, field: &Field, body: &[u8]) -> bool {
        match (&field.kind, field.default.as_deref()) {
            (_, Some("null")) => false,
            (Type::Plain(name), default) if name.starts_with("int") || name == "bool" => {
                let number = default.map_or(0i128, |text| match text {
                    "true" => 1,
                    number => number.parse().expect("a number"),
                });
                number.to_be_bytes().ends_with(body)
            }
            (Type::Plain(name), None) if name == "uuid" => body.iter().all(|byte| *byte == 0),
            (Type::Struct(name), None) => {
                let structure = self.message.find(name).expect("checked by the parser");
                let body =
                    if field.nullable.contains(self.version) { body.strip_prefix(&[1]) } else { Some(body) };
                body == Some(&self.default_body(structure)[..])
            }
            // Empty strings, bytes and arrays.
            (_, None) => body == [1],
            (kind, default) => unreachable!("no tagged field has a default like {kind:?} {default:?}"),
        }
    }

    fn default_body(&self, structure: &Struct) -> Vec<u8> {
        let mut out = Vec::new();
        for field in structure.fields.iter().filter(|f| f.versions.contains(self.version) && f.tag.is_none())
        {
            match (&field.kind, field.default.as_deref()) {
                (_, Some("null")) => out.push(0),
                (Type::Plain(name), default) if name.starts_with("int") => {
                    let width: usize = name.trim_start_matches("int").parse::<usize>().expect("a width") / 8;
                    let number: i128 = default.map_or(0, |text| text.parse().expect("a number"));
                    out.extend(&number.to_be_bytes()[16 - width..]);
                }
                (Type::Plain(name), None) if name == "uuid" => out.extend([0; 16]),
                _ => out.push(1),
            }
        }
        out.push(0);
        out
    }
}

fn varint(mut value: u32, out: &mut Vec<u8>) {
    while value > 127 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}
