//! What this process knows of the lane and may do there without asking the service.
//!
//! | module | what it knows |
//! |---|---|
//! | `closing` | how an open file is closed |
//! | `handles` | files that were closed and may be opened again without a request |
//! | `inline_data` | the first bytes of a file, which came with its open |
//! | `lease` | names that may be changed without asking |
//! | `locks` | POSIX locks that a former session had |
//! | `lookup` | paths whose state is known |
//! | `view` | what open files hold, to be read and written without asking |

pub(crate) mod closing;
pub(crate) mod handles;
pub(crate) mod inline_data;
pub(crate) mod lease;
pub(crate) mod locks;
pub(crate) mod lookup;
pub(crate) mod view;
