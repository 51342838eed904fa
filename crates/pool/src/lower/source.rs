//! A layer under a lane's own files, by name: what follows `--lower`.
//!
//! ```text
//!  [fixed:][data:][cached[=SIZE]:]…  DIR · dir:DIR · FILE · volume:FILE · ceph:… · union:FILE
//! ```
//!
//! `union:FILE` is a union of the layers that FILE names, one a line, as they follow `--lower`, the
//! uppermost first; a path in it that does not begin with a slash goes from the directory that FILE
//! is in. Empty lines and those that begin with `#` are skipped.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;
use polylane_base::size::ByteSize;
use polylane_volume::{self as volume, Found, Links};
use rustix::fs::{FileType, OFlags};

use super::{LOWERS_MAX, too_many};
use crate::ceph::CephPlace;
use crate::failure::{Failure, Result};
use crate::spec::LowerCache;

/// Most bytes of a file that describes a union.
const UNION_BYTES_MAX: u64 = 1 << 20;

/// What is done with such a file.
const READ_UNION: &str = "read the layers of a union from it";

/// Unions that lie in each other.
const DEPTH_MAX: usize = 8;

/// A layer under a lane's own files, by name. Nothing is opened yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LowerSource {
    /// A directory of the host.
    Dir(PathBuf),
    /// The root of the ext4 on a volume.
    Volume(PathBuf),
    /// A directory of a Ceph file system.
    Ceph(CephPlace),
    /// A union of layers, the uppermost first, and the file that names them.
    Union(PathBuf, Vec<LowerSource>),
    /// One of these that stays as it is while a lane is over it.
    Fixed(Box<LowerSource>),
    /// One of these of which no names are seen: files of the layers above point into it.
    Data(Box<LowerSource>),
    /// One of these in a cache of its own, of so many bytes; `None`: its share of the lane's.
    Cached(Box<LowerSource>, Option<u64>),
}

/// Where a layer's name is written.
struct Written<'a> {
    /// The directory that paths go from.
    dir: &'a Path,
    /// The files whose unions it is in, the outermost first.
    within: &'a [PathBuf],
    /// How many layers may still be named.
    left: &'a mut usize,
}

/// What follows `cached`: the size of the cache, and what is in it.
fn cache_of(text: &[u8]) -> Option<(Option<u64>, &OsStr)> {
    let colon = text.iter().position(|&byte| byte == b':')?;
    let (size, below) = (&text[..colon], OsStr::from_bytes(&text[colon + 1..]));
    let bytes = match size.strip_prefix(b"=") {
        None if size.is_empty() => None,
        Some(size) => Some(std::str::from_utf8(size).ok()?.parse::<ByteSize>().ok()?.0),
        None => return None,
    };
    Some((bytes, below))
}

impl Written<'_> {
    fn read(&mut self, text: &OsStr) -> Result<LowerSource> {
        let after =
            |kind: &str| text.as_bytes().strip_prefix(kind.as_bytes()).map(OsStr::from_bytes);
        if let Some(below) = after("fixed:") {
            return Ok(LowerSource::Fixed(Box::new(self.read(below)?)));
        }
        if let Some(below) = after("data:") {
            return Ok(LowerSource::Data(Box::new(self.read(below)?)));
        }
        if let Some((bytes, below)) = after("cached").and_then(|text| cache_of(text.as_bytes())) {
            return Ok(LowerSource::Cached(Box::new(self.read(below)?), bytes));
        }
        *self.left = self.left.checked_sub(1).ok_or_else(too_many)?;
        let path = |text: &OsStr| self.dir.join(text);
        let place = |text: &OsStr| text.to_str()?.parse::<CephPlace>().ok();
        if let Some(place) = after("ceph:").and_then(place) {
            return Ok(LowerSource::Ceph(place));
        }
        Ok(match (after("dir:"), after("volume:"), after("union:")) {
            (Some(dir), _, _) => LowerSource::Dir(path(dir)),
            (_, Some(file), _) => LowerSource::Volume(path(file)),
            (_, _, Some(file)) => return self.union(&path(file)),
            _ if path(text).metadata().is_ok_and(|found| !found.is_dir()) => {
                LowerSource::Volume(path(text))
            }
            _ => LowerSource::Dir(path(text)),
        })
    }

    /// The union of the layers that a file names.
    fn union(&mut self, path: &Path) -> Result<LowerSource> {
        let found = volume::expect(path, Links::Own, READ_UNION)?;
        let whole = &found.path;
        if let Some(at) = self.within.iter().position(|file| file == whole) {
            let round = self.within[at..].iter().chain([whole]);
            let round: Vec<String> = round.map(|file| Shown::new(file).to_string()).collect();
            return Err(Failure::usage(format!(
                "union:{}: it would be a layer of itself ({})",
                Shown::new(path),
                round.join(" names ")
            )));
        }
        if self.within.len() == DEPTH_MAX {
            return Err(Failure::usage(format!(
                "union:{}: at most {DEPTH_MAX} unions lie in each other",
                Shown::new(path)
            )));
        }
        let text = text_of(&found)?;
        let within = [self.within, std::slice::from_ref(whole)].concat();
        let dir = whole.parent().unwrap_or(Path::new("/"));
        let mut there = Written { dir, within: &within, left: &mut *self.left };
        let lines = text.split(|&byte| byte == b'\n');
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
        let layers = lines.map(|line| there.read(OsStr::from_bytes(line)));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        match layers.is_empty() {
            true => Err(Failure::failed(format!(
                "{}: it names no layer: write one on each line, as after --lower",
                Shown::new(path)
            ))),
            false => Ok(LowerSource::Union(path.into(), layers)),
        }
    }
}

/// What a file says that describes a union. Another user could name any file of this one's there.
fn text_of(found: &Found) -> Result<Vec<u8>> {
    let path = &found.path;
    let failed = |error| Failure::path(path, READ_UNION, error);
    // Not one that would have to be waited for.
    let file = found.open(OFlags::RDONLY | OFlags::NONBLOCK).map_err(|e| failed(e.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(|error| failed(error.into()))?;
    let refused = |why: &str| Err(Failure::failed(format!("{}: {why}", Shown::new(path))));
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refused("it is no file that could name the layers of a union");
    }
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid != own && stat.st_uid != 0 || stat.st_mode & super::WRITERS != 0 {
        return refused(
            "another user may write it, and could name any directory as a layer: use a file of \
             your own, after 'chmod go-w'",
        );
    }
    let mut text = Vec::new();
    let read = File::from(file).take(UNION_BYTES_MAX + 1).read_to_end(&mut text);
    match read.map_err(failed)? as u64 > UNION_BYTES_MAX {
        true => refused("it is too large to name the layers of a union"),
        false => Ok(text),
    }
}

impl LowerSource {
    /// Reads a layer as it is written on the command line: `dir:DIR`, `volume:FILE`,
    /// `ceph:[USER@]FSNAME[:PATH]`, `union:FILE`, or a path; before that `fixed:` for one that
    /// stays as it is, `data:` for a data-only one, and `cached:` or `cached=SIZE:` for one in a
    /// cache. A path that leads to a file or a device is a volume's.
    ///
    /// # Errors
    /// One line: a file that is to name the layers of a union does not, or names itself.
    pub fn parse(text: &OsStr) -> Result<LowerSource> {
        let mut left = LOWERS_MAX;
        Written { dir: Path::new(""), within: &[], left: &mut left }.read(text)
    }

    /// What it is without what is said of it.
    fn plain(&self) -> &LowerSource {
        match self {
            LowerSource::Fixed(below)
            | LowerSource::Data(below)
            | LowerSource::Cached(below, _) => below.plain(),
            _ => self,
        }
    }

    /// It and all layers of the unions in it.
    pub(crate) fn all(&self) -> Vec<&LowerSource> {
        let layers = self.layers().iter().flat_map(LowerSource::all);
        std::iter::once(self).chain(layers).collect()
    }

    /// Its layers, if it is a union.
    pub(crate) fn layers(&self) -> &[LowerSource] {
        if let LowerSource::Union(_, layers) = self.plain() { layers } else { &[] }
    }

    /// Where it is, for messages: a path of the host, or a place in a cluster.
    pub fn path(&self) -> Cow<'_, Path> {
        match self.plain() {
            LowerSource::Dir(path) | LowerSource::Volume(path) | LowerSource::Union(path, _) => {
                Cow::Borrowed(path)
            }
            LowerSource::Ceph(place) => Cow::Owned(format!("ceph:{place}").into()),
            below => below.path(),
        }
    }

    /// The directory of the host whose names it shows, if it does.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            LowerSource::Dir(path) => Some(path),
            LowerSource::Fixed(below) => below.directory(),
            _ => None,
        }
    }

    /// Its place in a cluster, where it is in one.
    pub(crate) fn ceph(&self) -> Option<&CephPlace> {
        if let LowerSource::Ceph(place) = self.plain() { Some(place) } else { None }
    }

    /// It, or a layer of it, is on a volume.
    pub(crate) fn is_volume(&self) -> bool {
        self.all().iter().any(|one| matches!(one.plain(), LowerSource::Volume(_)))
    }

    /// Nothing of it is seen but data that files of other layers point to.
    pub(crate) fn is_data_only(&self) -> bool {
        match self {
            LowerSource::Data(_) => true,
            LowerSource::Cached(below, _) | LowerSource::Fixed(below) => below.is_data_only(),
            _ => false,
        }
    }

    /// It stays as it is while a lane is over it.
    pub(crate) fn is_fixed(&self) -> bool {
        match self {
            LowerSource::Fixed(_) | LowerSource::Volume(_) => true,
            LowerSource::Cached(below, _) | LowerSource::Data(below) => below.is_fixed(),
            LowerSource::Union(_, layers) => layers.iter().all(LowerSource::is_fixed),
            LowerSource::Dir(_) | LowerSource::Ceph(_) => false,
        }
    }

    /// The cache that it is in, if it is in one.
    pub(crate) fn cache(&self) -> Option<LowerCache> {
        match self {
            LowerSource::Cached(_, bytes) => Some(LowerCache { bytes: *bytes }),
            LowerSource::Data(below) | LowerSource::Fixed(below) => below.cache(),
            _ => None,
        }
    }

    /// The same by an absolute path without links.
    ///
    /// # Errors
    /// It is not there, or a link of another user is on the way to it.
    pub fn canonical(&self) -> Result<LowerSource> {
        let whole = |path: &Path, links| {
            volume::expect(path, links, "use it as a lower").map(|found| found.path)
        };
        Ok(match self {
            LowerSource::Fixed(below) => LowerSource::Fixed(Box::new(below.canonical()?)),
            LowerSource::Data(data) => LowerSource::Data(Box::new(data.canonical()?)),
            LowerSource::Cached(below, bytes) => {
                LowerSource::Cached(Box::new(below.canonical()?), *bytes)
            }
            LowerSource::Dir(path) => LowerSource::Dir(whole(path, Links::Own)?),
            LowerSource::Volume(path) => LowerSource::Volume(whole(path, Links::ToTheirs)?),
            LowerSource::Ceph(place) => LowerSource::Ceph(place.clone()),
            LowerSource::Union(path, layers) => {
                let layers = layers.iter().map(LowerSource::canonical).collect::<Result<_>>()?;
                LowerSource::Union(whole(path, Links::Own)?, layers)
            }
        })
    }

    /// As it is written on the command line, so that it is read back as the same.
    pub(crate) fn text(&self) -> Vec<u8> {
        let with = |kind: &str, path: &Path| {
            let mut text = OsString::from(kind);
            text.push(path);
            text.into_vec()
        };
        match self {
            LowerSource::Dir(path) => with("", path),
            LowerSource::Volume(path) => with("volume:", path),
            LowerSource::Union(path, _) => with("union:", path),
            LowerSource::Ceph(place) => format!("ceph:{place}").into_bytes(),
            LowerSource::Fixed(below) => [b"fixed:", &below.text()[..]].concat(),
            LowerSource::Data(data) => [b"data:", &data.text()[..]].concat(),
            LowerSource::Cached(below, bytes) => {
                let size = bytes.map_or(String::new(), |bytes| format!("={bytes}"));
                [b"cached", size.as_bytes(), b":", &below.text()[..]].concat()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> LowerSource {
        LowerSource::parse(OsStr::new(text)).unwrap_or_else(|failure| panic!("{}", failure.line))
    }

    #[test]
    fn a_lower_is_read_back_as_it_is_shown() {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = dir.path().join("dir:v");
        std::fs::write(&file, "").expect("written");
        let [as_dir, as_volume]: [fn(PathBuf) -> LowerSource; 2] =
            [LowerSource::Dir, LowerSource::Volume];
        for (text, expected) in [
            ("dir:a", as_dir("a".into())),
            ("dir:volume:a", as_dir("volume:a".into())),
            ("volume:a:b", as_volume("a:b".into())),
            ("ceph:fs", LowerSource::Ceph("fs".parse().expect("a place"))),
            ("dir:ceph:fs", as_dir("ceph:fs".into())),
            ("cached:dir:a", LowerSource::Cached(Box::new(as_dir("a".into())), None)),
            ("cached=2M:a:b", LowerSource::Cached(Box::new(as_dir("a:b".into())), Some(2 << 20))),
            ("cached=x:a", as_dir("cached=x:a".into())),
            ("dir:cached:a", as_dir("cached:a".into())),
            ("fixed:a:b", LowerSource::Fixed(Box::new(as_dir("a:b".into())))),
            ("dir:union:a", as_dir("union:a".into())),
            ("/no/such:thing", as_dir("/no/such:thing".into())),
            (file.to_str().expect("UTF-8"), as_volume(file.clone())),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
        let data = LowerSource::Data(Box::new(as_volume(file.clone())));
        assert_eq!(parsed("data:volume:a:b"), {
            LowerSource::Data(Box::new(as_volume("a:b".into())))
        });
        let ceph = LowerSource::Ceph("u@fs:/a".parse().expect("a place"));
        let cached = [None, Some(3 << 20)]
            .map(|bytes| LowerSource::Cached(Box::new(as_volume(file.clone())), bytes));
        let [one, other] = cached;
        let both = LowerSource::Data(Box::new(one.clone()));
        assert!(both.is_data_only() && both.cache().is_some() && !one.is_data_only());
        let fixed = LowerSource::Fixed(Box::new(as_dir(dir.path().into())));
        let union = dir.path().join("union");
        std::fs::write(&union, "volume:dir:v\n").expect("written");
        let union = parsed(&format!("fixed:union:{}", union.display()));
        let plain = [as_dir(dir.path().into()), as_volume(file.clone()), data, ceph, fixed, union];
        for lower in plain.into_iter().chain([one, other, both]) {
            let lower = lower.canonical().expect("there");
            let again = LowerSource::parse(OsStr::from_bytes(&lower.text())).expect("is read");
            assert_eq!(again.canonical().expect("there"), lower);
        }
    }

    /// Unions in unions, with paths that go from the file that names them.
    #[test]
    fn a_union_is_what_its_file_names() {
        let dir = tempfile::tempdir().expect("tempdir");
        let here = dir.path().canonicalize().expect("canonical");
        let write =
            |name: &str, text: &str| std::fs::write(here.join(name), text).expect("written");
        std::fs::create_dir_all(here.join("in/a b:c")).expect("mkdir");
        write("v.img", "");
        write("outer", "# layers\n\nfixed:in/a b:c\nunion:in/inner\nv.img\n");
        write("in/inner", "volume:../v.img\ndata:cached=1M:/abs");
        let union = parsed(&format!("union:{}", here.join("outer").display()));
        let LowerSource::Union(_, layers) = &union else { panic!("{union:?}") };
        let inner = vec![
            LowerSource::Volume(here.join("in/../v.img")),
            LowerSource::Data(Box::new(LowerSource::Cached(
                Box::new(LowerSource::Dir("/abs".into())),
                Some(1 << 20),
            ))),
        ];
        let expected = [
            LowerSource::Fixed(Box::new(LowerSource::Dir(here.join("in/a b:c")))),
            LowerSource::Union(here.join("in/inner"), inner),
            LowerSource::Volume(here.join("v.img")),
        ];
        assert_eq!(layers[..], expected);
        assert!(union.is_volume() && !union.is_fixed() && union.all().len() == 6);
    }

    #[test]
    fn what_describes_no_union_is_refused_by_name() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("tempdir");
        let here = dir.path().canonicalize().expect("canonical");
        let write =
            |name: &str, text: &str| std::fs::write(here.join(name), text).expect("written");
        let refused = |name: &str| {
            let text = format!("union:{}", here.join(name).display());
            LowerSource::parse(OsStr::new(&text)).expect_err(name).line
        };
        write("own", "union:own\n");
        write("a", "/x\nunion:b");
        write("b", "union:./c\n");
        write("c", "union:a\n");
        write("empty", "\n# nothing\n");
        write("large", &"#\n".repeat(1 << 19));
        write("theirs", "/x\n");
        std::fs::set_permissions(here.join("theirs"), PermissionsExt::from_mode(0o664))
            .expect("chmod");
        (0..10).for_each(|depth| write(&format!("{depth}"), &format!("union:{}\n", depth + 1)));
        // Each names the next one twice.
        let many = "/x\n".repeat(200) + "union:many2\nunion:many2\n";
        write("many", &many);
        write("many2", &"/y\n".repeat(200));
        assert!(refused("own").contains("own names "), "{}", refused("own"));
        let round = refused("a");
        for name in ["a names ", "b names ", "c names "] {
            assert!(round.contains(&format!("{}/{name}", here.display())), "{round}");
        }
        for (name, said) in [
            ("absent", "No such file"),
            ("empty", "names no layer"),
            ("large", "names no layer"),
            ("theirs", "another user may write it"),
            ("0", "at most 8 unions"),
            ("many", "at most 500"),
            (".", "no file that could name"),
        ] {
            let line = refused(name);
            assert!(line.contains(said) && line.lines().count() == 1, "{name}: {line}");
        }
        write("large", &"#\n".repeat((1 << 19) + 1));
        assert!(refused("large").contains("too large"));
    }
}
