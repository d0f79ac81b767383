//! Writes the Rust for parsed messages: structs, defaults, `Wire` and `Message` implementations.
//!
//! What is generated is only the order of fields and the conditions on versions; everything else is a call into
//! `codec`, so that the generated code stays small and compiles fast.

use std::fmt::Write;

use crate::notation::{Field, Kind, Message, Range, Struct, Type};

/// The whole of `messages.rs`.
pub(crate) fn generate(messages: &[Message]) -> String {
    let mut out = String::new();
    for message in messages {
        let module = snake(&message.name);
        let _ = writeln!(out, "/// Kafka's `{}`.\npub mod {module} {{\nuse super::support::*;", message.name);
        for structure in &message.structs {
            write_struct(&mut out, message, structure);
        }
        write_message(&mut out, message);
        let _ = writeln!(out, "}}\npub use {module}::{};", message.name);
    }
    write_lists(&mut out, messages);
    out
}

/// `for_each_api!`: one row (key, request, response) per API; `for_each_message!`: all names.
fn write_lists(out: &mut String, messages: &[Message]) {
    out.push_str("/// Calls a macro with `(ApiKey variant, request, response)` of every API.\n");
    out.push_str("#[macro_export]\nmacro_rules! for_each_api { ($with:ident) => { $with! {\n");
    for message in messages.iter().filter(|m| m.kind == Kind::Request) {
        let name = message.name.trim_end_matches("Request");
        let _ = writeln!(out, "({name}, {name}Request, {name}Response)");
    }
    out.push_str("} } }\npub use for_each_api;\n");
    out.push_str(
        "/// Calls a macro with the name of every message, requests, responses, records and headers.\n",
    );
    out.push_str("#[macro_export]\nmacro_rules! for_each_message { ($with:ident) => { $with! {\n");
    for message in messages {
        let _ = writeln!(out, "{}", message.name);
    }
    out.push_str("} } }\npub use for_each_message;\n");
}

fn write_message(out: &mut String, message: &Message) {
    let (name, versions) = (&message.name, message.versions);
    let flexible = if message.flexible.is_empty() { i16::MAX } else { message.flexible.first };
    let _ = writeln!(
        out,
        "impl Message for {name} {{ const NAME: &'static str = \"{name}\"; const MIN_VERSION: i16 = {}; \
         const MAX_VERSION: i16 = {}; const FIRST_FLEXIBLE: i16 = {flexible}; }}",
        versions.first, versions.last
    );
    match (message.kind, message.number) {
        (Kind::Request, _) => {
            let api = name.trim_end_matches("Request");
            let _ = writeln!(
                out,
                "impl Request for {name} {{ const API: ApiKey = ApiKey::{api}; \
                 type Response = super::{api}Response; }}"
            );
        }
        (Kind::Key, Some(number)) => {
            let _ = writeln!(out, "impl RecordKey for {name} {{ const RECORD_TYPE: i16 = {number}; }}");
        }
        _ => {}
    }
}

fn write_struct(out: &mut String, message: &Message, structure: &Struct) {
    let name = &structure.name;
    let flexible = !message.flexible.within(structure.versions).is_empty();
    let plain_default = structure.fields.iter().all(default_is_derived);
    let derive = if plain_default { ", Default" } else { "" };
    let _ = writeln!(out, "#[derive(Clone, Debug, PartialEq{derive})]\npub struct {name} {{");
    for field in &structure.fields {
        let _ = writeln!(out, "pub {}: {},", ident(&field.name), rust_type(field));
    }
    if flexible {
        out.push_str("pub unknown_tagged_fields: TaggedFields,\n");
    }
    out.push_str("}\n");
    if !plain_default {
        let _ = writeln!(out, "impl Default for {name} {{ fn default() -> Self {{ Self {{");
        for field in &structure.fields {
            let _ = writeln!(out, "{}: {},", ident(&field.name), default_value(field));
        }
        out.push_str(if flexible { "unknown_tagged_fields: TaggedFields::EMPTY,\n" } else { "" });
        out.push_str("} } }\n");
    }
    let _ = writeln!(out, "impl Wire for {name} {{ const SMALLEST: usize = {};", smallest(structure));
    write_read(out, structure, flexible);
    write_write(out, message, structure, flexible);
    out.push_str("}\n");
}

fn write_read(out: &mut String, structure: &Struct, flexible: bool) {
    out.push_str("fn read(r: &mut Reader, v: i16) -> Result<Self, DecodeError> {\n");
    for field in structure.fields.iter().filter(|f| f.tag.is_none()) {
        let name = ident(&field.name);
        let mut read = read_call(field);
        if is_nullable(field) && field.nullable != field.versions {
            let allowed = condition(field.nullable, field.versions).unwrap_or_else(|| "false".into());
            let allowed = if field.nullable.is_empty() { "false".into() } else { allowed };
            read = format!("not_null({read}, {allowed}, \"{}\")?", field.name);
        }
        match condition(field.versions, structure.versions) {
            Some(when) => {
                let default = default_value(field);
                let _ = writeln!(out, "let {name} = if {when} {{ {read} }} else {{ {default} }};");
            }
            None => {
                let _ = writeln!(out, "let {name} = {read};");
            }
        }
    }
    if flexible {
        write_read_tags(out, structure);
    }
    out.push_str("Ok(Self { ");
    for field in &structure.fields {
        let _ = write!(out, "{}, ", ident(&field.name));
    }
    out.push_str(if flexible { "unknown_tagged_fields })\n}\n" } else { "})\n}\n" });
}

fn write_read_tags(out: &mut String, structure: &Struct) {
    let tagged: Vec<&Field> = structure.fields.iter().filter(|f| f.tag.is_some()).collect();
    if tagged.is_empty() {
        out.push_str("let unknown_tagged_fields = r.tagged_fields()?;\n");
        return;
    }
    for field in &tagged {
        let _ = writeln!(out, "let mut {} = {};", ident(&field.name), default_value(field));
    }
    out.push_str("let mut unknown_tagged_fields = TaggedFields::EMPTY;\n");
    out.push_str("for _ in 0..r.tag_count()? { let (tag, outer) = r.begin_tag()?; match tag {\n");
    for field in &tagged {
        let when =
            condition(field.versions, structure.versions).map(|c| format!(" if {c}")).unwrap_or_default();
        let tag = field.tag.unwrap_or_default();
        let _ = writeln!(out, "{tag}{when} => {} = {},", ident(&field.name), read_call(field));
    }
    out.push_str("_ => unknown_tagged_fields.push(tag, r.tag_body()?),\n} r.end_tag(outer)?; }\n");
}

fn write_write(out: &mut String, message: &Message, structure: &Struct, flexible: bool) {
    out.push_str("fn write(&self, w: &mut Writer, v: i16) {\n");
    for field in structure.fields.iter().filter(|f| f.tag.is_none()) {
        let path = format!("{}.{}", structure.name, field.name);
        let mut write = write_call(field);
        if is_nullable(field) && field.nullable != field.versions {
            let allowed = condition(field.nullable, field.versions).unwrap_or_else(|| "false".into());
            let allowed = if field.nullable.is_empty() { "false".into() } else { allowed };
            let name = ident(&field.name);
            write = format!("w.refuse_null(self.{name}.is_some() || {allowed}, \"{path}\"); {write}");
        }
        write_guarded(out, structure, field, &path, &write);
    }
    let tagged = tagged_fields(structure);
    if flexible {
        if tagged.is_empty() {
            out.push_str("w.tagged_fields(&self.unknown_tagged_fields);\n");
        } else {
            out.push_str("let mut tags = TagWriter::new(w);\n");
            for field in &tagged {
                let path = format!("{}.{}", structure.name, field.name);
                let name = ident(&field.name);
                let call = format!(
                    "if {} {{ tags.{}({}, &self.{name}, w, v); }}",
                    non_default(field),
                    if is_nullable_struct(field) { "add_structure" } else { "add" },
                    field.tag.unwrap_or_default()
                );
                write_guarded(out, structure, field, &path, &call);
            }
            out.push_str("tags.finish(w, &self.unknown_tagged_fields);\n");
        }
    }
    let _ = message;
    out.push_str("}\n");
}

fn write_guarded(out: &mut String, structure: &Struct, field: &Field, path: &str, write: &str) {
    match condition(field.versions, structure.versions) {
        None => {
            let _ = writeln!(out, "{write};");
        }
        Some(when) if field.ignorable => {
            let _ = writeln!(out, "if {when} {{ {write}; }}");
        }
        Some(when) => {
            let lost = non_default(field);
            let _ = writeln!(out, "if {when} {{ {write}; }} else {{ w.refuse({lost}, \"{path}\", v); }}");
        }
    }
}

fn tagged_fields(structure: &Struct) -> Vec<&Field> {
    let mut tagged: Vec<&Field> = structure.fields.iter().filter(|f| f.tag.is_some()).collect();
    tagged.sort_by_key(|f| f.tag);
    tagged
}

/// The condition under which `versions` holds inside `outer`; none when always.
fn condition(versions: Range, outer: Range) -> Option<String> {
    let lower = versions.first > outer.first;
    let upper = versions.last < outer.last;
    match (lower, upper) {
        (false, false) => None,
        (true, false) => Some(format!("v >= {}", versions.first)),
        (false, true) => Some(format!("v <= {}", versions.last)),
        (true, true) if versions.first == versions.last => Some(format!("v == {}", versions.first)),
        (true, true) => Some(format!("({}..={}).contains(&v)", versions.first, versions.last)),
    }
}

fn is_records(field: &Field) -> bool {
    field.kind == Type::Plain("records".into())
}

/// Records are optional in Rust even where the wire wants them.
fn is_nullable(field: &Field) -> bool {
    !field.nullable.is_empty() || is_records(field)
}

fn is_nullable_struct(field: &Field) -> bool {
    matches!(field.kind, Type::Struct(_)) && is_nullable(field)
}

fn plain_type(name: &str) -> &str {
    match name {
        "int8" => "i8",
        "int16" => "i16",
        "uint16" => "u16",
        "int32" => "i32",
        "uint32" => "u32",
        "int64" => "i64",
        "float64" => "f64",
        "string" => "Text",
        "uuid" => "Uuid",
        "bytes" => "Bytes",
        "records" => "Records",
        other => other,
    }
}

fn type_name(kind: &Type) -> String {
    match kind {
        Type::Plain(name) => plain_type(name).to_string(),
        Type::Struct(name) => name.clone(),
        Type::Array(element) => format!("Vec<{}>", type_name(element)),
    }
}

fn rust_type(field: &Field) -> String {
    let inner = type_name(&field.kind);
    match &field.kind {
        Type::Struct(_) if is_nullable(field) => format!("Option<Box<{inner}>>"),
        _ if is_nullable(field) => format!("Option<{inner}>"),
        _ => inner,
    }
}

fn is_number(field: &Field) -> bool {
    matches!(&field.kind, Type::Plain(name) if !["string", "uuid", "bytes", "records"].contains(&name.as_str()))
}

/// Whether Rust's own default is Kafka's.
fn default_is_derived(field: &Field) -> bool {
    match &field.default {
        Some(text) => text == "null" && is_nullable(field),
        None => !is_nullable(field) || is_records(field),
    }
}

fn default_value(field: &Field) -> String {
    match field.default.as_deref() {
        Some("null") => return "None".into(),
        Some(text) if is_number(field) => return text.to_string(),
        Some(text) => {
            let text = format!("Text::from_static({text})");
            return if is_nullable(field) { format!("Some({text})") } else { text };
        }
        None if is_records(field) => return "None".into(),
        None => {}
    }
    let empty = match &field.kind {
        Type::Plain(name) => match name.as_str() {
            "bool" => "false",
            "float64" => "0.0",
            "string" => "Text::EMPTY",
            "uuid" => "Uuid::ZERO",
            "bytes" => "Bytes::new()",
            _ => "0",
        },
        Type::Array(_) => "Vec::new()",
        Type::Struct(_) => "Default::default()",
    };
    if is_nullable(field) { format!("Some({empty})") } else { empty.to_string() }
}

/// The expression that is true when the field holds something else than its default.
fn non_default(field: &Field) -> String {
    let name = format!("self.{}", ident(&field.name));
    let null_default = field.default.as_deref() == Some("null") || is_records(field);
    match &field.kind {
        _ if is_nullable(field) && null_default => format!("{name}.is_some()"),
        Type::Plain(plain) if plain == "bool" && field.default.is_none() => name,
        Type::Plain(plain) if field.default.is_none() && ["string", "bytes"].contains(&plain.as_str()) => {
            if is_nullable(field) {
                format!("{name}.as_ref().is_none_or(|x| !x.is_empty())")
            } else {
                format!("!{name}.is_empty()")
            }
        }
        Type::Array(_) if is_nullable(field) => format!("{name}.as_ref().is_none_or(|x| !x.is_empty())"),
        Type::Array(_) => format!("!{name}.is_empty()"),
        Type::Struct(structure) if !is_nullable(field) => format!("{name} != {structure}::default()"),
        _ => format!("{name} != {}", default_value(field)),
    }
}

fn read_call(field: &Field) -> String {
    match &field.kind {
        Type::Plain(_) if field.inflexible => "r.inflexible_nullable_string()?".into(),
        Type::Plain(name) if is_number(field) => format!("r.{}()?", plain_type(name)),
        _ if field.tag.is_some() && is_nullable_struct(field) => "r.tagged_structure(v)?".into(),
        _ => "Wire::read(r, v)?".into(),
    }
}

fn write_call(field: &Field) -> String {
    let name = ident(&field.name);
    match &field.kind {
        Type::Plain(_) if field.inflexible => format!("w.inflexible_nullable_string(self.{name}.as_ref())"),
        Type::Plain(plain) if plain == "int16" && field.name.ends_with("ErrorCode") => {
            format!("w.error_code(self.{name})")
        }
        Type::Plain(plain) if is_number(field) => format!("w.{}(self.{name})", plain_type(plain)),
        _ => format!("self.{name}.write(w, v)"),
    }
}

/// Bytes that any encoding of the structure has at least; never 0, so that it bounds a count.
fn smallest(structure: &Struct) -> usize {
    let always = structure.fields.iter().filter(|f| f.tag.is_none() && f.versions == structure.versions);
    let bytes: usize = always
        .map(|f| match &f.kind {
            Type::Plain(name) => match name.as_str() {
                "int16" | "uint16" => 2,
                "int32" | "uint32" => 4,
                "int64" | "float64" => 8,
                "uuid" => 16,
                _ => 1,
            },
            Type::Struct(_) => 0,
            Type::Array(_) => 1,
        })
        .sum();
    bytes.max(1)
}

fn ident(name: &str) -> String {
    let name = snake(name);
    if ["type", "match", "ref", "move", "use", "loop", "self"].contains(&name.as_str()) {
        return format!("r#{name}");
    }
    name
}

/// `ApiKeyISR` -> `api_key_isr`.
pub(crate) fn snake(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut out = String::new();
    for (index, letter) in letters.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|i| letters.get(i)).copied().unwrap_or('_');
        let next_is_lower = letters.get(index + 1).is_some_and(|c| c.is_ascii_lowercase());
        let starts = before.is_ascii_lowercase()
            || before.is_ascii_digit()
            || (before.is_ascii_uppercase() && next_is_lower);
        if letter.is_ascii_uppercase() && starts {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}
