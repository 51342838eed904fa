//! Files of a layout by their name: in a directory, or in an archive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;
use rustix::fs::OFlags;

use crate::compression::BUFFER_BYTES;
use crate::error::{Error, Result};
use crate::member::{Broken, Kind, Reader};
use crate::tree::{self, Tree};

/// Most bytes of a JSON document of a layout.
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;

/// Most members of an archive that can be a layout; one of more is a root file system.
const MEMBERS_MAX: usize = 100_000;

/// Most bytes of a name that a file of a layout has.
const NAME_BYTES_MAX: usize = 255;

/// Most links from name to name.
const LINKS_MAX: usize = 8;

/// Part of a file.
pub(crate) struct Section {
    file: File,
    at: u64,
    end: u64,
}

impl Section {
    /// All of a file.
    pub(crate) fn whole(file: File) -> io::Result<Section> {
        let end = file.metadata()?.len();
        Ok(Section { file, at: 0, end })
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> u64 {
        self.end - self.at
    }
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.len()).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Where a layout's files are.
pub(crate) struct Members {
    source: PathBuf,
    place: Place,
}

enum Place {
    Dir(Tree),
    Archive(File, HashMap<Vec<u8>, Entry>),
}

enum Entry {
    Data { at: u64, size: u64 },
    Link(Vec<u8>),
}

impl Members {
    /// A directory.
    pub(crate) fn of_dir(source: &Path) -> Result<Members> {
        let tree = Tree::open(source).map_err(|error| Error::io(source, "open it", error))?;
        Ok(Members { source: source.to_path_buf(), place: Place::Dir(tree) })
    }

    /// An archive that is not packed.
    pub(crate) fn of_archive(source: &Path, file: File) -> Result<Members> {
        let broken = |broken| match broken {
            Broken::Io(error) => Error::io(source, "read it", error),
            Broken::Format(why) => Error::bad_file(source, why),
        };
        let failed = |error| Error::io(source, "read it", error);
        let mut entries = HashMap::new();
        let mut from = file.try_clone().map_err(failed)?;
        from.rewind().map_err(failed)?;
        let mut reader = Reader::new(BufReader::with_capacity(BUFFER_BYTES, from));
        while let Some(member) = reader.next().map_err(broken)? {
            let Ok(path) = tree::clean(&member.path) else { continue };
            let entry = match member.kind {
                Kind::File => Entry::Data { at: reader.data_offset(), size: member.size },
                Kind::HardLink => Entry::Link(member.link),
                // docker of old times: ../LAYER/layer.tar
                Kind::Symlink => Entry::Link(beside(&path, &member.link)),
                _ => continue,
            };
            let link = if let Entry::Link(to) = &entry { to.len() } else { 0 };
            if path.len().max(link) > NAME_BYTES_MAX {
                continue;
            }
            entries.insert(path, entry);
            if entries.len() > MEMBERS_MAX {
                entries.clear();
                break;
            }
        }
        Ok(Members { source: source.to_path_buf(), place: Place::Archive(file, entries) })
    }

    /// The file of this name; `None`: there is none.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Section>> {
        let failed = |error: io::Error| Error::io(&self.source.join(name), "read it", error);
        let Ok(path) = tree::clean(name.as_bytes()) else {
            return Err(Error::bad_file(
                &self.source,
                format!("names a file outside: {}", Shown::new(name)),
            ));
        };
        match &self.place {
            Place::Dir(tree) => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                match tree.find(&path, flags) {
                    Ok(file) => {
                        let file = File::from(file);
                        if !file.metadata().map_err(failed)?.is_file() {
                            return Ok(None);
                        }
                        Section::whole(file).map(Some).map_err(failed)
                    }
                    Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(None),
                    Err(error) => Err(failed(error.into())),
                }
            }
            Place::Archive(file, entries) => {
                let mut entry = entries.get(&path);
                for _ in 0..LINKS_MAX {
                    match entry {
                        Some(Entry::Link(to)) => {
                            entry = tree::clean(to).ok().and_then(|to| entries.get(&to));
                        }
                        Some(Entry::Data { at, size }) => {
                            let file = file.try_clone().map_err(failed)?;
                            return Ok(Some(Section { file, at: *at, end: at + size }));
                        }
                        None => return Ok(None),
                    }
                }
                Ok(None)
            }
        }
    }

    /// The bytes of a document; `None`: there is none.
    pub(crate) fn document(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(section) = self.find(name)? else { return Ok(None) };
        if section.len() > DOCUMENT_BYTES_MAX {
            return Err(Error::bad_file(&self.source, format!("{name} is larger than 4 MiB")));
        }
        let mut bytes = Vec::new();
        let mut section = section.take(DOCUMENT_BYTES_MAX);
        let read = section.read_to_end(&mut bytes);
        read.map_err(|error| Error::io(&self.source.join(name), "read it", error))?;
        Ok(Some(bytes))
    }
}

/// What a relative link at `path` leads to, `..` resolved.
fn beside(path: &[u8], link: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = tree::split(path).0.split(|&byte| byte == b'/').collect();
    for part in link.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.join(&b'/')
}
