//! What a container is, as its directory has it.

use serde::{Deserialize, Serialize};

/// The only version there is.
pub(crate) const VERSION: u32 = 1;

/// What the network of a container is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// One of its own, with the loopback device alone.
    #[default]
    None,
    /// The host's.
    Host,
}

/// What a container sees at a path besides its image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mount {
    /// A path of the host, or a lane's source as `polylane mount` takes it.
    pub source: String,
    /// Where, in the container.
    pub target: String,
    /// Nothing can be changed through it.
    pub read_only: bool,
}

impl Mount {
    /// Whether it is a lane's source, and not a path of the host.
    pub(crate) fn is_lane(&self) -> bool {
        !self.source.starts_with('/')
    }

    /// `SOURCE:TARGET[:ro]`, where SOURCE may have colons of its own.
    ///
    /// # Errors
    /// One line: it is not of that form.
    pub fn parse(text: &str) -> Result<Mount, String> {
        let (rest, read_only) = match text.strip_suffix(":ro") {
            Some(rest) => (rest, true),
            None => (text.strip_suffix(":rw").unwrap_or(text), false),
        };
        match rest.rsplit_once(':') {
            Some((source, target)) if !source.is_empty() => {
                Mount { source: source.into(), target: target.into(), read_only }.checked()
            }
            _ => Err(format!("{text}: write it as SOURCE:TARGET or SOURCE:TARGET:ro")),
        }
    }

    /// `type=bind,source=SOURCE,target=TARGET[,readonly]`.
    ///
    /// # Errors
    /// One line: it is not of that form.
    pub fn parse_fields(text: &str) -> Result<Mount, String> {
        let mut mount = Mount { source: String::new(), target: String::new(), read_only: false };
        for field in text.split(',') {
            match field.split_once('=').unwrap_or((field, "")) {
                ("type", "bind") => {}
                ("source" | "src", value) => mount.source = value.to_string(),
                ("target" | "dst" | "destination", value) => mount.target = value.to_string(),
                ("readonly" | "ro", "" | "true") => mount.read_only = true,
                _ => {
                    return Err(format!(
                        "{text}: '{field}' is not known: fields are type=bind, \
                                         source, target and readonly"
                    ));
                }
            }
        }
        mount.checked()
    }

    fn checked(self) -> Result<Mount, String> {
        let parts = || self.target.split('/').skip(1).filter(|part| !part.is_empty());
        let plain = self.target.starts_with('/') && parts().all(|part| part != ".." && part != ".");
        match plain && parts().next().is_some() && !self.source.is_empty() {
            true => Ok(self),
            false => Err(format!(
                "{}: not a path of a container, which begins with '/' and has no '..'",
                self.target
            )),
        }
    }

    /// TARGET without slashes that say nothing, from the root.
    pub(crate) fn target_parts(&self) -> String {
        let parts: Vec<&str> = self.target.split('/').filter(|part| !part.is_empty()).collect();
        parts.join("/")
    }
}

/// How far a container has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stage {
    /// A command makes it.
    Making,
    /// It can be started.
    Ready,
    /// A command removes it.
    Removing,
}

/// A container, as `record.json` has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub(crate) version: u32,
    pub(crate) stage: Stage,
    /// 16 hexadecimal digits.
    pub id: String,
    /// Its name, which no other container has.
    pub name: String,
    /// The pool of its lanes and processes; none: the default one.
    pub(crate) pool: Option<String>,
    /// The image's name.
    pub(crate) image: String,
    /// The image's digest.
    pub(crate) image_id: String,
    /// Directories of the image's layers, the uppermost first.
    pub(crate) layers: Vec<String>,
    /// When it was made, in seconds since 1970.
    pub(crate) created: u64,
    /// The runtime's program.
    pub(crate) runtime: String,
    /// What is executed.
    pub(crate) args: Vec<String>,
    /// Its environment, without what gives the fast way.
    pub(crate) env: Vec<String>,
    /// Its working directory.
    pub(crate) cwd: String,
    /// `USER[:GROUP]`, names or numbers.
    pub(crate) user: String,
    /// What asks it to end.
    pub(crate) stop_signal: String,
    pub(crate) hostname: String,
    pub(crate) network: Network,
    /// Thousandths of a CPU.
    pub(crate) cpus: Option<u64>,
    pub(crate) memory: Option<u64>,
    pub(crate) pids: Option<u64>,
    pub(crate) mounts: Vec<Mount>,
    /// Bytes of its volume.
    pub(crate) size: Option<u64>,
    /// Whether its processes have the library.
    pub(crate) preload: bool,
    pub(crate) terminal: bool,
    pub(crate) interactive: bool,
    /// It is removed when it ends.
    pub(crate) remove: bool,
}

/// How a container ended, as `exit.json` has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Exit {
    /// Its status; 128 and the signal's number if one ended it.
    pub(crate) status: u8,
    /// When, in seconds since 1970.
    pub(crate) ended: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read() {
        let mount = |text| Mount::parse(text).map(|m| (m.source, m.target, m.read_only));
        let is = |s: &str, t: &str, ro| Ok((s.to_string(), t.to_string(), ro));
        assert_eq!(mount("/a:/b"), is("/a", "/b", false));
        assert_eq!(mount("/a:/b:ro"), is("/a", "/b", true));
        assert_eq!(mount("volume:/a:b:/c"), is("volume:/a:b", "/c", false));
        for bad in ["", "/a", ":/b", "/a:b", "/a:/", "/a:/x/../y", "/a:/./b"] {
            assert!(mount(bad).is_err(), "{bad}");
        }
        let fields = |text| Mount::parse_fields(text).map(|m| (m.source, m.target, m.read_only));
        assert_eq!(fields("type=bind,source=/a,target=/b,readonly"), is("/a", "/b", true));
        assert_eq!(fields("src=mem:1G,dst=/b"), is("mem:1G", "/b", false));
        for bad in ["type=volume,source=a,target=/b", "source=/a", "target=/b", "x"] {
            assert!(fields(bad).is_err(), "{bad}");
        }
        assert_eq!(Mount::parse("/a://b//c/").unwrap().target_parts(), "b/c");
    }
}
