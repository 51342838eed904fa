//! SOURCE of `polylane mount`, as text: `volume:FILE`, `dir:DIR`, `mem:SIZE`,
//! `ceph:[USER@]FSNAME[:PATH]`, `rbd:[USER@]POOL/IMAGE[@SNAP]`, or a volume's file; `none` where
//! the lowers are all there is. What follows a volume's file or a size after a slash is a directory
//! in that: `volume:FILE/DIR`.
//!
//! The mount table compares sources by this text, so it is the same for every way to write a path.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use polylane_base::shown::Shown;
use polylane_base::size::ByteSize;
use polylane_volume::{self as volume, Links};

use crate::ceph::CephPlace;
use crate::failure::{Failure, Result};
use crate::lower::LowerSource;
use crate::rbd::ImagePlace;
use crate::run::Source;

/// What a mount is of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneSource {
    /// The libservice; paths are absolute, without links.
    pub(crate) source: Source,
    /// Bytes of a lane in RAM.
    pub(crate) size: Option<u64>,
    /// Layers under it, the uppermost first; paths are absolute, without links.
    pub(crate) lowers: Vec<LowerSource>,
    /// A directory in it, from its root; empty: the root.
    pub(crate) subtree: PathBuf,
}

impl LaneSource {
    /// Reads a source as it was written on the command line.
    ///
    /// # Errors
    /// One line: an unknown kind, a size that is none, a directory that is not there.
    pub fn parse(text: &OsStr) -> Result<LaneSource> {
        let shown = Shown::new(text);
        let usage = |why: &str| Err(Failure::usage(format!("{shown}: {why}")));
        let bytes = text.as_bytes();
        let colon = bytes.iter().position(|&byte| byte == b':');
        // A path with a colon in it is written with a slash before that, or after `volume:`.
        let kind = colon.map(|at| &bytes[..at]).filter(|kind| !kind.contains(&b'/'));
        let rest = |kind: &[u8]| OsStr::from_bytes(&bytes[kind.len() + 1..]);
        match kind {
            Some(kind @ b"volume") => LaneSource::volume(Path::new(rest(kind))),
            Some(kind @ b"dir") => LaneSource::dir(Path::new(rest(kind))),
            Some(kind @ b"mem") => {
                let (size, subtree) = parted(rest(kind));
                match size.to_string_lossy().parse::<ByteSize>() {
                    Ok(size) => LaneSource::new(Source::Mem, Some(size.0)).at(subtree),
                    Err(error) => usage(&format!("{error}: write it as mem:512M")),
                }
            }
            Some(kind @ b"ceph") => match rest(kind).to_string_lossy().parse::<CephPlace>() {
                Ok(place) => Ok(LaneSource::new(Source::Ceph(place), None)),
                Err(error) => usage(&error),
            },
            Some(kind @ b"rbd") => match rest(kind).to_string_lossy().parse::<ImagePlace>() {
                Ok(place) => Ok(LaneSource::new(Source::Image(place), None)),
                Err(error) => usage(&error),
            },
            Some(_) => usage(
                "unknown kind of source: write volume:FILE, dir:DIR, mem:SIZE, ceph:FSNAME or \
                 rbd:POOL/IMAGE",
            ),
            None if bytes == b"mem" => Ok(LaneSource::new(Source::Mem, None)),
            None if bytes == b"none" => Ok(LaneSource::new(Source::Lowers, None)),
            None if Path::new(text).is_dir() => {
                usage("is a directory: write it as dir:DIR to mount what is in it")
            }
            None => LaneSource::volume(Path::new(text)),
        }
    }

    /// What is under it, alone.
    pub(crate) fn ground(&self) -> LaneSource {
        let (lowers, subtree) = (self.lowers.clone(), PathBuf::new());
        LaneSource { source: Source::Lowers, size: None, lowers, subtree }
    }

    fn new(source: Source, size: Option<u64>) -> LaneSource {
        LaneSource { source, size, lowers: Vec::new(), subtree: PathBuf::new() }
    }

    /// A directory in it.
    fn at(self, subtree: &Path) -> Result<LaneSource> {
        let subtree: PathBuf = subtree.components().collect();
        let is_name = |part: Component<'_>| matches!(part, Component::Normal(_));
        match subtree.components().all(is_name) {
            true => Ok(LaneSource { subtree, ..self }),
            false => Err(Failure::usage(format!(
                "{}: not a directory's path from the root of the lane",
                Shown::new(&subtree)
            ))),
        }
    }

    /// Whether all that this is of is `other`'s, or lies in it.
    pub fn lies_in(&self, other: &LaneSource) -> bool {
        let below = match (&self.source, &other.source) {
            (Source::Mem, Source::Mem) => match other.size {
                Some(most) => self.size.is_some_and(|size| size <= most),
                None => true,
            },
            (Source::Dir(path), Source::Dir(whole))
            | (Source::Volume(Some(path)), Source::Volume(Some(whole))) => path.starts_with(whole),
            (Source::Ceph(place), Source::Ceph(whole)) => place.lies_in(whole),
            (Source::Image(image), Source::Image(whole)) => image == whole,
            _ => false,
        };
        below && self.subtree.starts_with(&other.subtree) && self.lowers == other.lowers
    }

    /// The lanes whose files may have what this is of, and where in them: the same lane, and those
    /// of a directory above, the nearest first.
    pub(crate) fn bases(&self) -> Vec<Base> {
        let whole = |source: Source, below: &Path| {
            let whole = LaneSource { source, subtree: PathBuf::new(), ..self.clone() };
            Base { source: whole.text(), subtree: below.join(&self.subtree).components().collect() }
        };
        let above = |path: &Path, of: &dyn Fn(&Path) -> Source| -> Vec<Base> {
            let all = path.ancestors();
            let below = |dir: &Path| path.strip_prefix(dir).unwrap_or(Path::new("")).to_path_buf();
            all.map(|dir| whole(of(dir), &below(dir))).collect()
        };
        match &self.source {
            Source::Dir(path) => above(path, &|dir| Source::Dir(dir.to_path_buf())),
            Source::Ceph(place) => above(Path::new(&place.path), &|dir| {
                let path = dir.to_string_lossy().into_owned();
                Source::Ceph(CephPlace { path, ..place.clone() })
            }),
            source => vec![whole(source.clone(), Path::new(""))],
        }
    }

    /// The same as the upper of a union over layers, the uppermost first, as they are written on
    /// the command line.
    ///
    /// # Errors
    /// One line: a layer that is not there.
    pub fn over(mut self, lowers: &[OsString]) -> Result<LaneSource> {
        for lower in lowers {
            self.lowers.push(LowerSource::parse(lower)?.canonical()?);
        }
        match self.source == Source::Lowers && self.lowers.is_empty() {
            true => Err(Failure::usage("none: only with --lower, which is then all there is")),
            false => Ok(self),
        }
    }

    fn volume(path: &Path) -> Result<LaneSource> {
        let Some(name) = path.file_name() else {
            return Err(Failure::usage(format!("{}: names no volume", Shown::new(path))));
        };
        // A file has nothing below it: that is in the volume.
        let is_volume = |above: &&Path| above.metadata().is_ok_and(|meta| !meta.is_dir());
        if let Some(volume) = path.ancestors().skip(1).find(is_volume) {
            let subtree = path.strip_prefix(volume).unwrap_or(Path::new(""));
            return LaneSource::volume(volume)?.at(subtree);
        }
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let what = "find the volume";
        let real = match volume::find(path, Links::ToTheirs, what)? {
            Some(found) => found.path,
            // One that is to be made. A link that leads nowhere is refused where it is opened.
            None => volume::expect(parent, Links::ToTheirs, what)?.path.join(name),
        };
        Ok(LaneSource::new(Source::Volume(Some(real)), None))
    }

    fn dir(path: &Path) -> Result<LaneSource> {
        if path.as_os_str().is_empty() {
            return Err(Failure::usage("dir: names no directory: write it as dir:DIR"));
        }
        let found = volume::expect(path, Links::Own, "find the lane's directory")?;
        match found.is_dir() {
            true => Ok(LaneSource::new(Source::Dir(found.path), None)),
            false => Err(Failure::failed(format!("{}: not a directory", Shown::new(path)))),
        }
    }

    /// The text by which sources are compared, and which people see.
    pub(crate) fn text(&self) -> Vec<u8> {
        let with = |kind: &str, path: &PathBuf| {
            let mut text = OsString::from(kind);
            text.push(path);
            text.into_vec()
        };
        let mut text = match &self.source {
            Source::Mem => match self.size {
                Some(size) => format!("mem:{}", in_units(size)).into_bytes(),
                None => b"mem".to_vec(),
            },
            Source::Dir(path) => with("dir:", path),
            Source::Volume(Some(path)) => with("volume:", path),
            Source::Volume(None) => b"volume".to_vec(),
            Source::Ceph(place) => format!("ceph:{place}").into_bytes(),
            Source::Image(place) => place.to_string().into_bytes(),
            Source::Lowers => b"none".to_vec(),
        };
        if !self.subtree.as_os_str().is_empty() {
            text.push(b'/');
            text.extend(self.subtree.as_os_str().as_bytes());
        }
        for lower in &self.lowers {
            text.extend(b" --lower ");
            text.extend(lower.text());
        }
        text
    }
}

/// A lane of which another source is a part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Base {
    /// Its source, as the table has it.
    pub(crate) source: Vec<u8>,
    /// From the root of the lane; empty: the root.
    pub(crate) subtree: PathBuf,
}

/// What is before the first slash, and behind it.
fn parted(text: &OsStr) -> (&OsStr, &Path) {
    let bytes = text.as_bytes();
    match bytes.iter().position(|&byte| byte == b'/') {
        Some(at) => {
            (OsStr::from_bytes(&bytes[..at]), Path::new(OsStr::from_bytes(&bytes[at + 1..])))
        }
        None => (text, Path::new("")),
    }
}

/// A size in the largest unit of which it is a multiple, as the command line takes it.
fn in_units(bytes: u64) -> String {
    let units = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    let fits = |(_, bits): &(&str, u32)| bytes > 0 && bytes.is_multiple_of(1 << bits);
    match units.into_iter().find(fits) {
        Some((unit, bits)) => format!("{}{unit}", bytes >> bits),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(of: &Path, kind: &str) -> String {
        let mut word = OsString::from(kind);
        word.push(of);
        String::from_utf8(LaneSource::parse(&word).expect("a source").text()).expect("UTF-8")
    }

    #[test]
    fn a_source_has_one_text_however_it_is_written() {
        let dir = tempfile::tempdir().expect("tempdir");
        let real = dir.path().canonicalize().expect("canonical");
        std::fs::write(real.join("v.img"), "").expect("write");
        std::os::unix::fs::symlink(&real, real.join("link")).expect("symlink");
        let expected = format!("volume:{}/v.img", real.display());
        for (kind, path) in [("volume:", "v.img"), ("", "link/v.img"), ("", "link/../v.img")] {
            // What is behind a link's `..` is the kernel's to say.
            let path = if path.contains("..") { real.join("v.img") } else { real.join(path) };
            assert_eq!(text(&path, kind), expected);
        }
        let new = real.join("link/new:1.img");
        assert_eq!(text(&new, "volume:"), format!("volume:{}/new:1.img", real.display()));
        assert_eq!(text(&new, ""), format!("volume:{}/new:1.img", real.display()));
        assert_eq!(text(&real.join("link"), "dir:"), format!("dir:{}", real.display()));
        assert_eq!(text(Path::new("mem:65536K"), ""), "mem:64M");
        assert_eq!(text(Path::new("ceph:web"), ""), "ceph:admin@web:/");
        assert_eq!(text(Path::new("rbd:p/i@s"), ""), "rbd:admin@p/i@s");
        for (one, other) in
            [("mem:64M", "mem:67108864"), ("mem", "mem"), ("ceph:web", "ceph:client.admin@web:/")]
        {
            assert_eq!(text(Path::new(one), ""), text(Path::new(other), ""));
        }
    }

    #[test]
    fn lowers_are_part_of_a_source_in_their_order() {
        let dir = tempfile::tempdir().expect("tempdir");
        let real = dir.path().canonicalize().expect("canonical");
        let [a, b] = ["a", "b"].map(|name| real.join(name));
        for dir in [&a, &b] {
            std::fs::create_dir(dir).expect("made");
        }
        let over = |word: &str, lowers: &[PathBuf]| {
            let lowers: Vec<OsString> = lowers.iter().map(OsString::from).collect();
            LaneSource::parse(OsStr::new(word)).and_then(|source| source.over(&lowers))
        };
        let text = over("mem", &[real.join("b/../a"), b.clone()]).expect("a source").text();
        let expected = format!("mem --lower {} --lower {}", a.display(), b.display());
        assert_eq!(String::from_utf8(text).expect("UTF-8"), expected);
        assert_ne!(over("mem", &[b, a.clone()]).expect("a source").text(), expected.as_bytes());
        assert!(over("none", &[a]).is_ok());
        assert_eq!(over("none", &[]).expect_err("refused").status, 2);
        assert_eq!(over("mem", &[real.join("no")]).expect_err("refused").status, 1);
    }

    #[test]
    fn a_directory_in_a_lane_is_found_in_those_of_directories_above() {
        let dir = tempfile::tempdir().expect("tempdir");
        let real = dir.path().canonicalize().expect("canonical");
        std::fs::write(real.join("v.img"), "").expect("write");
        std::fs::create_dir_all(real.join("d/sub")).expect("made");
        let bases = |word: &OsStr| -> Vec<(String, String)> {
            let all = LaneSource::parse(word).expect("a source").bases().into_iter();
            let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
            all.map(|base| (text(base.source), base.subtree.display().to_string())).collect()
        };
        let volume = format!("volume:{}/v.img", real.display());
        let of = |source: &str, subtree: &str| (source.to_string(), subtree.to_string());
        let expected = [of(&volume, "a/b")];
        assert_eq!(bases(real.join("v.img/a/b").as_os_str()), expected);
        assert_eq!(text(&real.join("v.img/a//b/"), "volume:"), format!("{volume}/a/b"));
        assert_eq!(bases(OsStr::new("mem:65536K/a")), [of("mem:64M", "a")]);
        let mut word = OsString::from("dir:");
        word.push(real.join("d/sub"));
        let found = bases(&word);
        let at = |path: &Path| format!("dir:{}", path.display());
        assert_eq!(found[0], of(&at(&real.join("d/sub")), ""));
        assert_eq!(found[1], of(&at(&real.join("d")), "sub"));
        assert_eq!(found[2], of(&at(&real), "d/sub"));
        for wrong in ["v.img/../x", "v.img/a/../b"] {
            let failure = LaneSource::parse(real.join(wrong).as_os_str()).expect_err(wrong);
            assert!(failure.status > 0, "{failure}");
        }
    }

    #[test]
    fn a_source_lies_in_itself_and_in_what_is_above_it() {
        let dir = tempfile::tempdir().expect("tempdir");
        let real = dir.path().canonicalize().expect("canonical");
        for name in ["d/sub", "dir"] {
            std::fs::create_dir_all(real.join(name)).expect("made");
        }
        std::fs::write(real.join("d/v.img"), "").expect("write");
        std::os::unix::fs::symlink(&real, real.join("d/out")).expect("symlink");
        let source = |text: &str| {
            let text = text.replace('%', real.to_str().expect("UTF-8"));
            LaneSource::parse(OsStr::new(&text)).expect("a source")
        };
        for (one, other, lies) in [
            ("dir:%/d/sub", "dir:%/d", true),
            ("dir:%/d/../d/sub/", "dir:%/d/", true),
            ("dir:%/dir", "dir:%/d", false),
            ("dir:%", "dir:%/d", false),
            ("dir:%/d/..", "dir:%/d", false),
            ("dir:%/d/out/dir", "dir:%/d", false),
            ("dir:%/d/out/d/sub", "dir:%/d", true),
            ("volume:%/d/v.img", "volume:%/d/", true),
            ("volume:%/d/new.img", "volume:%/d", true),
            ("volume:%/d/out/new.img", "volume:%/d", false),
            ("volume:%/d/v.img/in/it", "volume:%/d/v.img/in", true),
            ("volume:%/d/v.img", "volume:%/d/v.img/in", false),
            ("volume:%/d/v.img", "dir:%/d", false),
            ("dir:%/d/sub", "volume:%/d", false),
            ("mem:1M", "mem:1M", true),
            ("mem:1025K", "mem:1M", false),
            ("mem", "mem:1M", false),
            ("mem:1G", "mem", true),
            ("ceph:u@fs:/a/./b", "ceph:u@fs:/a", true),
            ("ceph:u@fs:/a/../b", "ceph:u@fs:/a", false),
            ("ceph:u@fs:/ab", "ceph:u@fs:/a", false),
            ("ceph:fs:/a", "ceph:u@fs:/a", false),
            ("ceph:u@other:/a", "ceph:u@fs:/a", false),
            ("rbd:p/i", "rbd:p/i", true),
            ("rbd:p/i@s", "rbd:p/i", false),
            ("none", "none", false),
        ] {
            assert_eq!(source(one).lies_in(&source(other)), lies, "{one} in {other}");
        }
    }

    #[test]
    fn other_sources_are_refused_by_name() {
        for (word, status, part) in [
            ("ceph:@:x", 2, "FSNAME"),
            ("rbd:p", 2, "POOL/IMAGE"),
            ("tmpfs:1M", 2, "unknown kind"),
            ("mem:lots", 2, "mem:512M"),
            ("/", 2, "dir:DIR"),
            ("dir:/no/such", 1, "/no/such"),
            ("dir:/dev/null", 1, "not a directory"),
            ("volume:", 2, "names no volume"),
            ("/no/such/v.img", 1, "/no/such/v.img"),
        ] {
            let failure = LaneSource::parse(OsStr::new(word)).expect_err("refused");
            assert!(failure.status == status && failure.line.contains(part), "{word}: {failure}");
        }
    }
}
