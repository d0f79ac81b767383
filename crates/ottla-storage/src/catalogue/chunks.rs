//! A catalogue as the first chunks of a snapshot.
//!
//! Mostly it is one chunk. Files that it has no room for follow in further chunks, each a catalogue of its own with
//! nothing but them, and the first chunk says how many these are. So the number of files has no other limit than memory.

use bytes::{BufMut, Bytes, BytesMut};

use super::Catalogue;
use crate::layout::Fields;

/// Files of one chunk: 11 MB, where a chunk may have 16 MiB.
const FILES_MAX: usize = 200_000;
/// Where the first chunk says how many follow: in what a change of the files leaves free.
const FURTHER_AT: usize = 8 + 24;

impl Catalogue {
    /// As the first chunks of a snapshot, at least one.
    pub(crate) fn chunks(&self) -> Vec<Bytes> {
        self.chunks_of(FILES_MAX)
    }

    fn chunks_of(&self, files_max: usize) -> Vec<Bytes> {
        let mut files = self.files.iter().map(|(file, live)| (*file, *live));
        let first: Vec<_> = files.by_ref().take(files_max).collect();
        let first = Self { files: first.into_iter().collect(), ..self.clone() };
        let mut chunks = vec![first.encode()];
        loop {
            let part: Vec<_> = files.by_ref().take(files_max).collect();
            if part.is_empty() {
                break;
            }
            let part = Self { chain: self.chain, files: part.into_iter().collect(), ..Self::default() };
            chunks.push(part.encode());
        }
        let further = chunks.len() as u64 - 1;
        let mut first = BytesMut::from(&chunks[0][..]);
        let mut place = &mut first[FURTHER_AT..];
        place.put_u64(further);
        chunks[0] = first.freeze();
        chunks
    }

    /// Reads the first chunk of a snapshot; also how many further ones belong to the catalogue.
    pub(crate) fn of_first_chunk(bytes: &[u8]) -> Option<(Self, u64)> {
        let further = Fields(bytes.get(FURTHER_AT..FURTHER_AT + 8)?).u64(0);
        Some((Self::decode(bytes)?, further))
    }

    /// Adds the files of a further chunk.
    pub(crate) fn add_chunk(&mut self, bytes: &[u8]) -> Option<()> {
        self.files.extend(Self::decode(bytes)?.files);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::catalogue::LiveFile;
    use crate::file_header::Seal;
    use crate::options::{FileId, FrameSequence};

    fn catalogue(files: u64) -> Catalogue {
        let live = |number| {
            let file = FileId(number);
            let seal = Seal {
                file,
                nonce: number,
                length: 8192,
                last_sequence: FrameSequence(number),
                last_header_crc: 9,
            };
            (file, LiveFile { seal, is_settled: false, newest_source: file })
        };
        let files: BTreeMap<FileId, LiveFile> = (1..=files).map(live).collect();
        Catalogue { chain: FileId(1_000_000), files, next_data: 77, ..Catalogue::default() }
    }

    fn read(chunks: &[Bytes]) -> Option<Catalogue> {
        let (mut catalogue, further) = Catalogue::of_first_chunk(&chunks[0])?;
        assert_eq!(further, chunks.len() as u64 - 1);
        chunks[1..].iter().try_for_each(|chunk| catalogue.add_chunk(chunk))?;
        Some(catalogue)
    }

    /// Proves: a catalogue comes back from its chunks, however many; one chunk is written as it was before there were
    /// several.
    #[test]
    fn a_catalogue_survives_its_chunks() {
        for (files, chunks) in [(0, 1), (1, 1), (10, 1), (11, 2), (20, 2), (35, 4)] {
            let catalogue = catalogue(files);
            let written = catalogue.chunks_of(10);
            assert_eq!(written.len(), chunks, "{files} files");
            assert_eq!(read(&written), Some(catalogue.clone()), "{files} files");
            assert!(chunks > 1 || written[0] == catalogue.encode());
        }
    }

    /// Proves: more files than fit into one chunk of a snapshot are no reason to fail.
    #[test]
    fn many_files_fit() {
        let catalogue = catalogue(450_000);
        let written = catalogue.chunks();
        assert!(written.len() == 3 && written.iter().all(|chunk| chunk.len() <= 16 << 20));
        assert!(read(&written) == Some(catalogue));
    }

    /// Proves: what is no chunk of a catalogue is refused.
    #[test]
    fn what_is_no_chunk_is_refused() {
        let written = catalogue(3).chunks();
        for length in 0..written[0].len() {
            assert_eq!(Catalogue::of_first_chunk(&written[0][..length]), None);
            assert_eq!(Catalogue::default().add_chunk(&written[0][..length]), None);
        }
    }
}
