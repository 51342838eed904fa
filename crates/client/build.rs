//! For musl: the unwinder comes with the library. `libgcc_s` of a host whose programs use another C
//! library would bring that one into the process too.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if variable("CARGO_CFG_TARGET_ENV") != "musl" {
        return;
    }
    let sysroot = Command::new(variable("RUSTC")).args(["--print", "sysroot"]).output();
    let sysroot = String::from_utf8(sysroot.expect("run rustc").stdout).expect("a path");
    let unwinder = PathBuf::from(sysroot.trim())
        .join("lib/rustlib")
        .join(variable("TARGET"))
        .join("lib/self-contained/libunwind.a");
    if !unwinder.exists() {
        return; // A toolchain of musl's own, whose libgcc_s is right.
    }
    let out = variable("OUT_DIR");
    let script = format!("INPUT({})\n", unwinder.display());
    std::fs::write(PathBuf::from(&out).join("libgcc_s.so"), script).expect("write the script");
    println!("cargo::rustc-link-search=native={out}");
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
