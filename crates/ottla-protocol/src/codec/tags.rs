//! Tagged fields (KIP-482): those that a structure does not know are kept, so that it encodes to the same bytes.

use bytes::Bytes;

use super::wire::Wire;
use super::writer::Writer;

/// Unknown tagged fields of a structure, by tag. One pointer; nothing is allocated when there are none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaggedFields(#[allow(clippy::box_collection)] Option<Box<Vec<(u32, Bytes)>>>); // boxed: 8 bytes in every structure

impl TaggedFields {
    /// None.
    pub const EMPTY: Self = Self(None);

    /// Tag and body of each field.
    pub fn fields(&self) -> &[(u32, Bytes)] {
        self.0.as_ref().map(|fields| fields.as_slice()).unwrap_or_default()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.fields().is_empty()
    }

    /// Adds a field.
    pub fn push(&mut self, tag: u32, body: Bytes) {
        self.0.get_or_insert_default().push((tag, body));
    }
}

/// Gathers the tagged fields of a structure that differ from their defaults.
pub(crate) struct TagWriter {
    flexible: bool,
    fields: Vec<(u32, Vec<Bytes>)>,
}

impl TagWriter {
    pub(crate) fn new(writer: &Writer) -> Self {
        Self { flexible: writer.is_flexible(), fields: Vec::new() }
    }

    /// Encodes a field's body.
    pub(crate) fn add<T: Wire>(&mut self, tag: u32, value: &T, writer: &mut Writer, version: i16) {
        self.body(tag, writer, |body| value.write(body, version));
    }

    /// Encodes a structure that may be null: here 0 stands for null, elsewhere -1 does.
    pub(crate) fn add_structure<T: Wire>(
        &mut self,
        tag: u32,
        value: &Option<Box<T>>,
        writer: &mut Writer,
        version: i16,
    ) {
        self.body(tag, writer, |body| match value {
            Some(structure) => {
                body.u8(1);
                structure.write(body, version);
            }
            None => body.u8(0),
        });
    }

    fn body(&mut self, tag: u32, writer: &mut Writer, write: impl FnOnce(&mut Writer)) {
        let mut body = Writer::new();
        body.set_flexible(self.flexible);
        write(&mut body);
        if let Some(error) = body.take_error() {
            writer.fail(error);
        }
        self.fields.push((tag, body.finish()));
    }

    /// Writes them together with the unknown ones, in the order of their tags.
    pub(crate) fn finish(mut self, writer: &mut Writer, unknown: &TaggedFields) {
        if !self.flexible {
            return;
        }
        self.fields.extend(unknown.fields().iter().map(|(tag, body)| (*tag, vec![body.clone()])));
        self.fields.sort_by_key(|(tag, _)| *tag);
        writer.unsigned_varint(self.fields.len() as u32);
        for (tag, body) in &self.fields {
            writer.unsigned_varint(*tag);
            writer.unsigned_varint(body.iter().map(Bytes::len).sum::<usize>() as u32);
            body.iter().for_each(|chunk| writer.raw(chunk));
        }
    }
}
