//! The compact notation of `schema/*.schema`: parsed by the build script, by xtask's schema check and by the
//! protocol's own tests (each includes this file by path). Standard library only.
//!
//! The grammar is in `schema/README.md`. Parsing is strict: an unknown word is an error that names its line.

/// A range of versions, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// First version.
    pub(crate) first: i16,
    /// Last version; `i16::MAX` for "and all later ones".
    pub(crate) last: i16,
}

impl Range {
    /// No version at all.
    pub(crate) const NONE: Self = Self { first: 1, last: 0 };

    /// Parses `3`, `3-5` or `3+`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(first) = text.strip_suffix('+') {
            return Some(Self { first: first.parse().ok()?, last: i16::MAX });
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(Self { first: first.parse().ok()?, last: last.parse().ok()? })
    }

    /// Whether the version is inside.
    pub(crate) fn contains(self, version: i16) -> bool {
        self.first <= version && version <= self.last
    }

    /// The part of this range that lies in `other`.
    pub(crate) fn within(self, other: Self) -> Self {
        Self { first: self.first.max(other.first), last: self.last.min(other.last) }
    }

    /// Whether no version is inside.
    pub(crate) fn is_empty(self) -> bool {
        self.first > self.last
    }
}

/// What a message is for: the first word of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A request; has an API key.
    Request,
    /// A response; has an API key.
    Response,
    /// A request or response header.
    Header,
    /// The key of a record of an internal topic; has a record type.
    Key,
    /// The value of a record of an internal topic; has a record type.
    Value,
    /// Any other structure.
    Data,
}

/// Type of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// A type of the notation itself: `bool int8 ... string uuid bytes records`.
    Plain(String),
    /// A structure of the same message.
    Struct(String),
    /// An array.
    Array(Box<Type>),
}

/// A field.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// Kafka's name.
    pub(crate) name: String,
    /// Its type.
    pub(crate) kind: Type,
    /// Versions that have the field, cut to those of the structure.
    pub(crate) versions: Range,
    /// Versions in which it may be null.
    pub(crate) nullable: Range,
    /// Tag number of a tagged field.
    pub(crate) tag: Option<u32>,
    /// The default as written, when it is not the type's empty value.
    pub(crate) default: Option<String>,
    /// Whether a value is dropped silently in versions without the field.
    pub(crate) ignorable: bool,
    /// A string that keeps its two-byte length in flexible versions too.
    pub(crate) inflexible: bool,
    /// A field of Ottla's that Kafka's message has not.
    pub(crate) own: bool,
}

/// A structure: named fields.
#[derive(Clone, Debug)]
pub(crate) struct Struct {
    /// Kafka's name.
    pub(crate) name: String,
    /// Versions in which it is used.
    pub(crate) versions: Range,
    /// Its fields in wire order.
    pub(crate) fields: Vec<Field>,
}

/// A message: its top structure and those below.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// What it is for.
    pub(crate) kind: Kind,
    /// Kafka's name.
    pub(crate) name: String,
    /// API key of a request or response, record type of a key or value.
    pub(crate) number: Option<i16>,
    /// Versions that exist.
    pub(crate) versions: Range,
    /// Versions with compact lengths and tagged fields; may begin before those that exist.
    pub(crate) flexible: Range,
    /// The top structure first, then the others in the order of their first mention.
    pub(crate) structs: Vec<Struct>,
}

impl Message {
    /// The structure of that name.
    pub(crate) fn find(&self, name: &str) -> Option<&Struct> {
        self.structs.iter().find(|s| s.name == name)
    }
}

const PLAIN: [&str; 12] = [
    "bool", "int8", "int16", "uint16", "int32", "uint32", "int64", "float64", "string", "uuid", "bytes",
    "records",
];

/// Parses a file. The error names the line.
pub(crate) fn parse(text: &str) -> Result<Vec<Message>, String> {
    let mut messages: Vec<Message> = Vec::new();
    // Index (in the current message) of the structure that each level of indentation adds to.
    let mut levels: Vec<usize> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let fail = |what: &str| format!("line {}: {what}: {line}", number + 1);
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        if indent == 0 {
            messages.push(parse_head(&words).ok_or_else(|| fail("not a message head"))?);
            levels = vec![0];
            continue;
        }
        let level = indent / 2;
        if indent % 2 != 0 || level > levels.len() {
            return Err(fail("wrong indentation"));
        }
        let message = messages.last_mut().ok_or_else(|| fail("a field before any message"))?;
        levels.truncate(level);
        if let ["struct", name, rest @ ..] = words.as_slice() {
            let versions = match rest {
                [] => message.versions,
                [range] => Range::parse(range).ok_or_else(|| fail("bad range"))?.within(message.versions),
                _ => return Err(fail("words behind the structure's name")),
            };
            levels.push(message.structs.len());
            message.structs.push(Struct { name: name.to_string(), versions, fields: Vec::new() });
            continue;
        }
        let owner = *levels.last().ok_or_else(|| fail("no structure to add to"))?;
        let field = parse_field(line, message.structs[owner].versions).ok_or_else(|| fail("not a field"))?;
        // A deeper line may follow and give the structure's fields: it is made now, and dropped if it stays empty.
        let name = struct_name(&field.kind).unwrap_or_default().to_string();
        levels.push(message.structs.len());
        message.structs.push(Struct { name, versions: field.versions, fields: Vec::new() });
        message.structs[owner].fields.push(field);
    }
    for message in &mut messages {
        let top = message.name.clone();
        message.structs.retain(|s| !s.fields.is_empty() || s.name == top);
        check(message)?;
    }
    Ok(messages)
}

fn parse_head(words: &[&str]) -> Option<Message> {
    let (kind, name) = (words.first()?, words.get(1)?.to_string());
    let kind = match *kind {
        "request" => Kind::Request,
        "response" => Kind::Response,
        "header" => Kind::Header,
        "key" => Kind::Key,
        "value" => Kind::Value,
        "data" => Kind::Data,
        _ => return None,
    };
    let (mut number, mut versions, mut flexible) = (None, None, Range::NONE);
    for pair in words[2..].chunks(2) {
        match pair {
            ["api" | "type", n] => number = Some(n.parse().ok()?),
            ["versions", range] => versions = Range::parse(range),
            ["flexible", range] => flexible = Range::parse(range)?,
            _ => return None,
        }
    }
    let versions = versions?;
    let top = Struct { name: name.clone(), versions, fields: Vec::new() };
    Some(Message { kind, name, number, versions, flexible, structs: vec![top] })
}

fn parse_field(line: &str, owner: Range) -> Option<Field> {
    let (line, default) = match line.split_once(" = ") {
        // `own` may follow the default, so that it stands at the line's end.
        Some((line, default)) => match default.strip_suffix(" own") {
            Some(default) => (format!("{line} own"), Some(default.to_string())),
            None => (line.to_string(), Some(default.to_string())),
        },
        None => (line.to_string(), None),
    };
    let mut words = line.split_whitespace();
    let name = words.next()?.to_string();
    let kind = words.next()?;
    let (kind, null_everywhere) = kind.strip_suffix('?').map_or((kind, false), |kind| (kind, true));
    let mut field = Field {
        name,
        kind: parse_type(kind)?,
        versions: owner,
        nullable: Range::NONE,
        tag: None,
        default,
        ignorable: false,
        inflexible: false,
        own: false,
    };
    let mut nullable = null_everywhere.then_some(owner);
    while let Some(word) = words.next() {
        match word {
            "tag" => field.tag = Some(words.next()?.parse().ok()?),
            "nullable" => nullable = Some(Range::parse(words.next()?)?),
            "ignorable" => field.ignorable = true,
            "inflexible" => field.inflexible = true,
            "own" => field.own = true,
            range => field.versions = Range::parse(range)?.within(owner),
        }
    }
    if let Some(nullable) = nullable {
        field.nullable = nullable.within(field.versions);
    }
    (!field.versions.is_empty()).then_some(field)
}

fn parse_type(text: &str) -> Option<Type> {
    if let Some(element) = text.strip_prefix("[]") {
        return Some(Type::Array(Box::new(parse_type(element)?)));
    }
    if PLAIN.contains(&text) {
        return Some(Type::Plain(text.to_string()));
    }
    text.starts_with(|c: char| c.is_ascii_uppercase()).then(|| Type::Struct(text.to_string()))
}

/// Name of the structure that a type mentions.
pub(crate) fn struct_name(kind: &Type) -> Option<&str> {
    match kind {
        Type::Plain(_) => None,
        Type::Struct(name) => Some(name),
        Type::Array(element) => struct_name(element),
    }
}

/// Every mentioned structure exists, once, and none contains itself: decoding depth is bounded by the schema.
fn check(message: &Message) -> Result<(), String> {
    fn walk(message: &Message, name: &str, depth: usize) -> Result<(), String> {
        let found = message.structs.iter().filter(|s| s.name == name).count();
        if found != 1 || depth > 16 {
            return Err(format!("{}: {name}: {found} definitions, depth {depth}", message.name));
        }
        let fields = message.find(name).map(|s| s.fields.as_slice()).unwrap_or_default();
        fields.iter().filter_map(|f| struct_name(&f.kind)).try_for_each(|n| walk(message, n, depth + 1))
    }
    walk(message, &message.name, 0)
}
