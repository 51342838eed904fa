//! Error numbers as the tenant's program will see them.

use std::fmt;

/// A positive Linux error number (`errno(3)`), the one error type of the file door.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(pub i32);

/// A result whose failure is an [`Errno`].
pub type Result<T, E = Errno> = std::result::Result<T, E>;

macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "` of errno(3).")]
                pub const $name: Errno = Errno(libc::$name);
            )*

            /// The symbolic name, where this table knows it.
            pub fn name(self) -> Option<&'static str> {
                match self { $(Errno::$name => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

errnos! {
    EPERM, ENOENT, ESRCH, EINTR, EIO, ENXIO, E2BIG, EBADF, EAGAIN, ENOMEM, EACCES, EFAULT, EBUSY,
    EEXIST, EXDEV, ENODEV, ENOTDIR, EISDIR, EINVAL, ENFILE, EMFILE, ENOTTY, ETXTBSY, EFBIG, ENOSPC,
    ESPIPE, EROFS, EMLINK, EPIPE, ERANGE, EDEADLK, ENAMETOOLONG, ENOLCK, ENOSYS, ENOTEMPTY, ELOOP,
    ENODATA, EOVERFLOW, EOPNOTSUPP, ESTALE, EDQUOT, ECANCELED, EPROTO, ENOTCONN, ETIMEDOUT,
    ECONNRESET, EALREADY, EUCLEAN,
}

/// The kernel's words for it: `Permission denied`.
impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&std::io::Error::from_raw_os_error(self.0)))
    }
}

/// The text of a system error without Rust's ` (os error N)`.
pub fn plain(error: &std::io::Error) -> String {
    let mut text = error.to_string();
    if let Some(end) = text.find(" (os error ") {
        text.truncate(end);
    }
    text
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        std::io::Error::from_raw_os_error(errno.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_said_in_the_kernels_words_alone() {
        assert_eq!(Errno::EPERM.to_string(), "Operation not permitted");
        assert_eq!(plain(&std::io::Error::other("a word")), "a word");
    }
}
