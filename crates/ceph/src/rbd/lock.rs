//! Who has an image alone.
//!
//! librbd's exclusive lock says which client has an image, as an address. Whose client that is
//! stands in the image's metadata, under [`KEY`]:
//!
//! | word | what |
//! |---|---|
//! | first | the session, which is the same for a service and the one that follows it |
//! | second | the client's address, as the lock has it |
//! | the rest | a name for people |

use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::sync::thread;

use super::settings::{Failure, Settings};
use crate::ffi::Image;

/// Of the metadata.
const KEY: &std::ffi::CStr = c"polylane.holder";

/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
const HAS_LOCK: u64 = 1 << 2;

/// Between two tries to lock an image.
const LOCK_PERIOD: Duration = Duration::from_millis(500);

/// What the metadata says.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Record {
    session: String,
    address: String,
    name: String,
}

impl Record {
    fn parse(text: &str) -> Option<Record> {
        let mut words = text.splitn(3, ' ').map(str::to_string);
        Some(Record { session: words.next()?, address: words.next()?, name: words.next()? })
    }

    fn text(&self) -> String {
        format!("{} {} {}", self.session, self.address, self.name)
    }

    /// That of the client at this address.
    fn of(image: &Image, address: &str) -> Option<Record> {
        let record = Record::parse(&image.value(KEY).ok()??)?;
        (record.address == address).then_some(record)
    }
}

/// Who has the image, for people; `None`: nobody.
pub(super) fn holder(image: &Image) -> Option<String> {
    let address = image.lock_owner().ok()??;
    Some(match Record::of(image, &address) {
        Some(record) => format!("{} (client {address})", record.name),
        None => format!("the client {address}"),
    })
}

/// Locks an image. A lock that a former process of the session left is broken at once; another's
/// end is waited for.
pub(super) fn lock(image: &Image, settings: &Settings) -> Result<(), Failure> {
    let call = |what| move |errno| Failure::Call(what, errno);
    if image.features().map_err(call("ask for its features"))? & HAS_LOCK == 0 {
        return Err(Failure::NoLock);
    }
    break_former(image, &settings.session).map_err(call("break the lock of a former process"))?;
    let began = Instant::now();
    loop {
        match image.lock() {
            Ok(()) => break,
            Err(Errno::EBUSY | Errno::EROFS | Errno::EAGAIN)
                if began.elapsed() < settings.timeout =>
            {
                thread::sleep(LOCK_PERIOD);
            }
            Err(Errno::EBUSY | Errno::EROFS | Errno::EAGAIN) => {
                return Err(Failure::InUse(holder(image)));
            }
            Err(errno) => return Err(Failure::Call("lock the image", errno)),
        }
    }
    sign(image, settings).map_err(call("write down who has it"))
}

fn break_former(image: &Image, session: &str) -> Result<(), Errno> {
    let Some(address) = image.lock_owner()? else { return Ok(()) };
    match Record::of(image, &address).filter(|record| record.session == session) {
        Some(_) => image.break_lock(&address),
        None => Ok(()),
    }
}

/// Writes down whose the lock is that this client has.
fn sign(image: &Image, settings: &Settings) -> Result<(), Errno> {
    let Some(address) = image.lock_owner()? else { return Err(Errno::ENOLCK) };
    let (session, name) = (settings.session.replace(' ', "_"), settings.holder.clone());
    image.set_value(KEY, &Record { session, address, name }.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = Record {
            session: "s-1".to_string(),
            address: "1.2.3.4:0/5".to_string(),
            name: "pool 'web' of host h".to_string(),
        };
        assert_eq!(Record::parse(&record.text()), Some(record));
        for text in ["", "s", "s 1.2.3.4:0/5"] {
            assert_eq!(Record::parse(text), None, "{text}");
        }
    }
}
