//! What the library asks of the object files and libraries that it is linked with, so that it loads
//! into any program of any image:
//!
//! - The unwinder comes with the library. An image need not have `libgcc_s`, and that of a host
//!   whose programs use another C library must not come into the process.
//! - No symbol is newer than glibc 2.17: the loader ends a program whose libc lacks a version that
//!   a preloaded library names. Those that glibc 2.34 moved to `libc.so.6` under a new version are
//!   found by the library itself (`kernel/real/apart.rs`).

use std::path::PathBuf;
use std::process::Command;

/// What the standard library asks for weakly and does without where there is none, with the version
/// of glibc that brought it.
const WEAK_SYMBOLS: [&str; 2] = [
    "__cxa_thread_atexit_impl", // 2.18
    "gettid",                   // 2.30
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(variable("OUT_DIR"));
    let archives = match variable("CARGO_CFG_TARGET_ENV").as_str() {
        "musl" => musl_unwinder(),
        "gnu" => {
            for weak in WEAK_SYMBOLS {
                println!("cargo::rustc-cdylib-link-arg=-Wl,--defsym={weak}=0");
            }
            gnu_unwinder()
        }
        _ => None,
    };
    let Some(archives) = archives else {
        return; // A toolchain that has no such archive: its `libgcc_s` is taken.
    };
    std::fs::write(out.join("libgcc_s.so"), format!("INPUT({archives})\n"))
        .expect("write the linker script");
    println!("cargo::rustc-link-search=native={}", out.display());
}

/// The unwinder of Rust's own target for musl.
fn musl_unwinder() -> Option<String> {
    let sysroot = Command::new(variable("RUSTC")).args(["--print", "sysroot"]).output();
    let sysroot = String::from_utf8(sysroot.expect("run rustc").stdout).expect("a path");
    let unwinder = PathBuf::from(sysroot.trim())
        .join("lib/rustlib")
        .join(variable("TARGET"))
        .join("lib/self-contained/libunwind.a");
    unwinder.exists().then(|| unwinder.display().to_string())
}

/// The unwinder of the C compiler: under the GCC runtime library exception.
fn gnu_unwinder() -> Option<String> {
    let archive = |name| {
        let path = Command::new(linker()).arg(format!("-print-file-name={name}")).output().ok()?;
        let path = PathBuf::from(String::from_utf8(path.stdout).ok()?.trim());
        path.is_absolute().then(|| path.display().to_string())
    };
    Some(format!("{} {}", archive("libgcc_eh.a")?, archive("libgcc.a")?))
}

fn linker() -> String {
    let name =
        format!("CARGO_TARGET_{}_LINKER", variable("TARGET").to_uppercase().replace('-', "_"));
    match variable(&name) {
        name if !name.is_empty() => name,
        _ => match variable("RUSTC_LINKER") {
            name if !name.is_empty() => name,
            _ => "cc".into(),
        },
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
