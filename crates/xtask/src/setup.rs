//! What the tests need beside Rust, and how it is had: by apt-get where we may, else by asking.
//!
//! The list is short on purpose: the tests bring their own clients. Real foreign clients are installed by the
//! scripts under `compat/`, when `cargo xtask compat` is asked for.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::run;

/// A program or library, the Debian packages that have it, and why it is needed.
struct Need {
    name: &'static str,
    packages: &'static [&'static str],
    reason: &'static str,
    is_there: fn(&str) -> bool,
}

/// Everything that a build and the tests use.
const NEEDS: &[Need] = &[
    Need {
        name: "cc",
        packages: &["gcc", "libc6-dev"],
        reason: "links Rust programs and compiles zstd",
        is_there: run::on_path,
    },
    Need { name: "c++", packages: &["g++"], reason: "compiles RocksDB", is_there: run::on_path },
    Need {
        name: "libclang",
        packages: &["libclang-dev"],
        reason: "reads RocksDB's C header",
        is_there: has_libclang,
    },
    Need {
        name: "ccache",
        packages: &["ccache"],
        reason: "keeps the compiled RocksDB between builds",
        is_there: run::on_path,
    },
];

/// Installs what is missing, or says what to install.
pub(crate) fn ensure() -> Result<()> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !(need.is_there)(need.name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for need in &missing {
        eprintln!("missing: {} ({})", need.name, need.reason);
    }
    let packages: Vec<&str> = missing.iter().flat_map(|need| need.packages).copied().collect();
    if !run::on_path("apt-get") || !is_root() {
        bail!("please install: {}", packages.join(" "));
    }
    run::step(&format!("installing {}", packages.join(" ")));
    run::check(apt().arg("update"))?;
    run::check(apt().args(["install", "--yes", "--no-install-recommends"]).args(packages))
}

/// Whether the shared library of libclang is where its users look for it.
fn has_libclang(_name: &str) -> bool {
    let named = std::env::var_os("LIBCLANG_PATH").map(PathBuf::from);
    let versioned = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let versioned = versioned
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("llvm"))
        .map(|entry| entry.path().join("lib"));
    let usual = [
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
    ];
    named.into_iter().chain(versioned).chain(usual.map(PathBuf::from)).any(|folder| holds_libclang(&folder))
}

fn holds_libclang(folder: &Path) -> bool {
    std::fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // not libclang-cpp, which has another interface
        (name.starts_with("libclang.so")
            || name.starts_with("libclang-") && !name.starts_with("libclang-cpp"))
            && name.contains(".so")
            || name == "libclang.dylib"
    })
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.arg("--quiet").env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn is_root() -> bool {
    run::output(Command::new("id").arg("-u")).is_ok_and(|text| text.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The C++ interface of libclang and its static archives do not count: bindgen loads the C library.
    #[test]
    fn libclang_is_told_from_its_neighbours() {
        let folder = tempfile::tempdir().unwrap();
        for other in ["libclang-cpp.so.14", "libclangAST.a", "libclang.a"] {
            std::fs::write(folder.path().join(other), "").unwrap();
        }
        assert!(!holds_libclang(folder.path()));
        std::fs::write(folder.path().join("libclang-14.so.1"), "").unwrap();
        assert!(holds_libclang(folder.path()));
    }
}
