//! Small doors to files outside the data folder: configuration, input of commands, scratch folders.
//!
//! Nothing of the log goes through here (see `disk`), and nothing here is made durable.

#![allow(clippy::disallowed_methods)] // this is the seam that everybody else uses

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Reads a whole text file of at most `bytes_max` bytes. `FileTooLarge` when it is longer, `InvalidData` when
/// it is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {bytes_max} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"))
}

/// Reads a whole file of at most `bytes_max` bytes.
pub fn read_bytes(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// Opens a file to be read piece by piece.
pub fn open_read(path: &Path) -> io::Result<fs::File> {
    fs::File::open(path)
}

/// Creates or empties a file and opens it for writing.
pub fn create(path: &Path) -> io::Result<fs::File> {
    fs::File::create(path)
}

/// Opens a file for writing at its end, creating it when absent.
pub fn open_append(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().create(true).append(true).open(path)
}

/// Writes a whole file, replacing what was there.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::write(path, bytes)
}

/// Creates a folder and those above it; fine when it exists.
pub fn create_folders(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

/// Removes a folder with everything in it; fine when it is absent.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes one file; fine when it is absent.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Gives a file a second name. Errors: another file system, or one that has no such names (`CrossesDevices`,
/// `Unsupported`, `PermissionDenied`); the name is taken.
pub fn hard_link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to)
}

/// What is in a folder, sorted.
pub fn list_folder(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    found.sort();
    Ok(found)
}

/// Which file a path leads to: a copy is another file, a renamed one the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileIdentity {
    /// Number of the file system; may change when the machine starts.
    pub device: u64,
    /// Number of the file in it.
    pub inode: u64,
}

/// The identity of the file or folder at a path.
pub fn identity(path: &Path) -> io::Result<FileIdentity> {
    Ok(facts_of(&fs::metadata(path)?).identity)
}

/// What a file system says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Which file it is.
    pub identity: FileIdentity,
    /// Length in bytes.
    pub bytes: u64,
    /// When it was last written, ns since 1970.
    pub modified_ns: i64,
    /// A plain file, not a folder, link or device.
    pub is_file: bool,
}

fn facts_of(metadata: &fs::Metadata) -> FileFacts {
    use std::os::unix::fs::MetadataExt;
    FileFacts {
        identity: FileIdentity { device: metadata.dev(), inode: metadata.ino() },
        bytes: metadata.len(),
        modified_ns: metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
        is_file: metadata.is_file(),
    }
}

/// Facts about what a path leads to.
pub fn facts(path: &Path) -> io::Result<FileFacts> {
    Ok(facts_of(&fs::metadata(path)?))
}

/// Facts about an open file, whatever its name is by now.
pub fn facts_of_open(file: &fs::File) -> io::Result<FileFacts> {
    Ok(facts_of(&file.metadata()?))
}

/// Reads at an offset until the buffer is full or the file ends; gives how much.
pub fn read_at(file: &fs::File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    use std::os::unix::fs::FileExt;
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Bytes of all files in a folder and below.
pub fn tree_bytes(path: &Path) -> io::Result<u64> {
    let mut total = 0;
    for found in list_folder(path)? {
        let metadata = fs::symlink_metadata(&found)?;
        total += if metadata.is_dir() { tree_bytes(&found)? } else { metadata.len() };
    }
    Ok(total)
}

/// Creates a new folder with an unused name that begins with `prefix` in the system's folder for temporary
/// files. The caller removes it.
pub fn create_scratch_folder(prefix: &str) -> io::Result<PathBuf> {
    use crate::rng::{OsRng, Rng};
    let path = std::env::temp_dir().join(format!("{prefix}-{:016x}", OsRng.next_u64()));
    fs::create_dir(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that reading text is bounded and checks the encoding, and that a tree can be listed and removed.
    #[test]
    fn text_and_trees() {
        let folder = create_scratch_folder("ottla-files").expect("a folder");
        let file = folder.join("a").join("text");
        create_folders(&folder.join("a")).expect("created");
        write(&file, b"twelve bytes").expect("written");
        assert_eq!(read_text(&file, 12).expect("short enough"), "twelve bytes");
        assert_eq!(read_text(&file, 11).expect_err("too long").kind(), io::ErrorKind::FileTooLarge);
        write(&file, b"\xff").expect("written");
        assert_eq!(read_text(&file, 12).expect_err("no text").kind(), io::ErrorKind::InvalidData);
        assert_eq!(list_folder(&folder).expect("listed"), vec![folder.join("a")]);
        assert_eq!(tree_bytes(&folder).expect("counted"), 1);
        write(&folder.join("b"), b"1").expect("written");
        let first = identity(&file).expect("there");
        assert_eq!(identity(&folder.join("a").join("text")).expect("there"), first);
        assert_ne!(identity(&folder.join("b")).expect("there").inode, first.inode);
        let open = open_read(&file).expect("there");
        let (found, mut buffer) = (facts_of_open(&open).expect("told"), [0; 4]);
        assert_eq!((found, found.bytes, found.is_file), (facts(&file).expect("told"), 1, true));
        assert_eq!(read_at(&open, &mut buffer, 0).expect("read"), 1, "up to the end");
        remove_tree(&folder).expect("removed");
        remove_tree(&folder).expect("absent is fine");
    }
}
