//! Who this process is to the cluster, kept in its state folder.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ottla_env::disk::os::OsDisk;
use ottla_env::disk::{Disk, File};
use ottla_env::files;
use ottla_env::rng::{OsRng, Rng};

const FILE: &str = "identity";
const NEW_FILE: &str = "identity.new";
const BYTES_MAX: u64 = 4096;
const FORMAT: &str = "1";

/// Names that stay over restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Part of the transactional ids: 16 hexadecimal digits.
    pub process_id: String,
    /// For static membership: the application id and the process id.
    pub group_instance_id: String,
    /// The member id of the consumer protocol (KIP-848), chosen by us.
    pub member_id: String,
    /// Why it was made anew at this start; `None` = it was there. A new one waits for what an old one left open.
    pub made_because: Option<&'static str>,
}

/// Where the identity's file was written: a copy has another place.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    host: String,
    boot: String,
    file: files::FileIdentity,
}

fn text_of(path: &str) -> String {
    match files::read_text(Path::new(path), BYTES_MAX) {
        Ok(text) => text.trim().to_owned(),
        Err(_) => String::new(), // systems without it: one hint less, the others remain
    }
}

/// The machine: its id where it has one, else its name.
fn host() -> String {
    let machine = text_of("/etc/machine-id");
    if machine.is_empty() { text_of("/proc/sys/kernel/hostname") } else { machine }
}

impl Place {
    fn of(file: &Path) -> io::Result<Self> {
        Ok(Self {
            host: host(),
            boot: text_of("/proc/sys/kernel/random/boot_id"),
            file: files::identity(file)?,
        })
    }

    /// Why `self`, which was written down, is not where the file is `now`.
    fn moved(&self, now: &Self) -> Option<&'static str> {
        if self.host != now.host {
            return Some("the folder was copied from another machine");
        }
        // Device numbers may change when a machine starts, inodes do not.
        let same_boot = self.boot == now.boot && !now.boot.is_empty();
        let same_device = self.file.device == now.file.device || !same_boot;
        if self.file.inode != now.file.inode || !same_device {
            return Some("the folder is a copy");
        }
        None
    }
}

fn fields(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once('=')).collect()
}

fn parse(text: &str) -> Option<(Identity, Place)> {
    let fields = fields(text);
    let get = |name| fields.get(name).map(|&value: &&str| value.to_owned());
    if fields.get("format") != Some(&FORMAT) || fields.get("end") != Some(&"") {
        return None;
    }
    let identity = Identity {
        process_id: get("process_id")?,
        group_instance_id: get("group_instance_id")?,
        member_id: get("member_id")?,
        made_because: None,
    };
    let (device, inode) = (fields.get("device")?.parse().ok()?, fields.get("inode")?.parse().ok()?);
    let file = files::FileIdentity { device, inode };
    Some((identity, Place { host: get("host")?, boot: get("boot")?, file }))
}

/// Writes a new small file, synced.
pub(super) fn write_whole(file: &Arc<dyn File>, text: &str) -> io::Result<()> {
    let written = file.write_vectored_at(&[io::IoSlice::new(text.as_bytes())], 0)?;
    if written < text.len() {
        return Err(io::Error::new(io::ErrorKind::WriteZero, "a small file was not written whole"));
    }
    file.sync_all()
}

impl Identity {
    /// Reads the identity of a folder; makes one when there is none, when it cannot be read, or when it is a copy.
    pub(super) fn load_or_make(disk: &OsDisk, application_id: &str) -> io::Result<Self> {
        let path = disk.path().join(FILE);
        let why = match files::read_text(&path, BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => "the folder is new",
            Err(error) if error.kind() == io::ErrorKind::InvalidData => "the identity could not be read",
            Err(error) => return Err(error),
            Ok(text) => match parse(&text) {
                None => "the identity could not be read",
                Some((identity, place)) => match place.moved(&Place::of(&path)?) {
                    None => return Ok(identity),
                    Some(why) => why,
                },
            },
        };
        tracing::info!(folder = %disk.path().display(), why, "this process gets an identity of its own");
        Self::make(disk, application_id, why)
    }

    fn make(disk: &OsDisk, application_id: &str, why: &'static str) -> io::Result<Self> {
        let process_id = format!("{:016x}", OsRng.next_u64());
        let identity = Self {
            group_instance_id: format!("{application_id}-{process_id}"),
            member_id: format!("{:016x}{:016x}", OsRng.next_u64(), OsRng.next_u64()),
            process_id,
            made_because: Some(why),
        };
        let new = disk.path().join(NEW_FILE);
        files::remove(&new)?;
        let file = disk.create(NEW_FILE)?;
        let place = Place::of(&new)?; // a rename keeps the inode
        let text = format!(
            "format={FORMAT}\nprocess_id={}\ngroup_instance_id={}\nmember_id={}\nhost={}\nboot={}\ndevice={}\ninode={}\nend=\n",
            identity.process_id,
            identity.group_instance_id,
            identity.member_id,
            place.host,
            place.boot,
            place.file.device,
            place.file.inode,
        );
        write_whole(&file, &text)?;
        disk.rename(NEW_FILE, FILE)?;
        disk.sync_dir()?;
        Ok(identity)
    }
}
