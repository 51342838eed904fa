//! What this process knows of the lane and may do there without asking the service.
//!
//! | module | what it knows |
//! |---|---|
//! | `handles` | files that were closed and may be opened again without a request |
//! | `inline_data` | the first bytes of a file, which came with its open |
//! | `lease` | names that may be changed without asking |
//! | `lookup` | paths whose state is known |
//! | `view` | what open files hold, to be read and written without asking |

pub(crate) mod handles;
pub(crate) mod inline_data;
pub(crate) mod lease;
pub(crate) mod lookup;
pub(crate) mod view;
