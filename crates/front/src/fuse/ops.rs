//! What each operation does: one table, then one short function each.
//!
//! An operation reads its arguments, calls the file door once, and writes its reply. They are by
//! subject: names (`names.rs`), attributes (`attrs.rs`), file data (`files.rs`), directory streams
//! (`dirs.rs`), locks (`locks.rs`).

use polylane_base::Errno;

use super::call::{Call, End, Outcome};
use super::protocol::opcode;
use super::{attrs, dirs, files, init, ioctl, locks, names};

/// The table of operations. What is not in it is not there: the kernel remembers `ENOSYS` and does
/// without.
pub(super) fn dispatch(call: &mut Call<'_>) -> End {
    match call.header.opcode {
        opcode::LOOKUP => names::lookup(call),
        opcode::FORGET => names::forget(call),
        opcode::BATCH_FORGET => names::batch_forget(call),
        opcode::SYMLINK => names::symlink(call),
        opcode::MKNOD => names::mknod(call),
        opcode::MKDIR => names::mkdir(call),
        opcode::UNLINK => names::unlink(call),
        opcode::RMDIR => names::rmdir(call),
        opcode::RENAME => names::rename(call),
        opcode::RENAME2 => names::rename2(call),
        opcode::LINK => names::link(call),
        opcode::READLINK => names::readlink(call),
        opcode::CREATE => names::create(call),
        opcode::TMPFILE => names::tmpfile(call),
        opcode::GETATTR => attrs::getattr(call),
        opcode::SETATTR => attrs::setattr(call),
        opcode::STATX => attrs::statx(call),
        opcode::ACCESS => attrs::access(call),
        opcode::SETXATTR => attrs::setxattr(call),
        opcode::GETXATTR => attrs::getxattr(call),
        opcode::LISTXATTR => attrs::listxattr(call),
        opcode::REMOVEXATTR => attrs::removexattr(call),
        opcode::STATFS => attrs::statfs(call),
        opcode::SYNCFS => attrs::syncfs(call),
        opcode::OPEN => files::open(call),
        opcode::READ => files::read(call),
        opcode::WRITE => files::write(call),
        opcode::FLUSH => files::flush(call),
        opcode::RELEASE => files::release(call),
        opcode::FSYNC => files::fsync(call),
        opcode::FALLOCATE => files::fallocate(call),
        opcode::LSEEK => files::lseek(call),
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => files::copy_file_range(call),
        opcode::IOCTL => ioctl::ioctl(call),
        opcode::OPENDIR => dirs::opendir(call),
        opcode::READDIR => dirs::readdir(call),
        opcode::READDIRPLUS => dirs::readdirplus(call),
        opcode::RELEASEDIR => dirs::releasedir(call),
        opcode::FSYNCDIR => dirs::fsyncdir(call),
        opcode::GETLK => locks::getlk(call),
        opcode::SETLK => locks::setlk(call, false),
        opcode::SETLKW => locks::setlk(call, true),
        opcode::INTERRUPT => locks::interrupt(call),
        opcode::INIT => init(call),
        opcode::DESTROY => Ok(Outcome::Reply),
        opcode::NOTIFY_REPLY => Ok(Outcome::Silent),
        _ => Err(Errno::ENOSYS.into()),
    }
}

/// INIT on a mount whose supervisor left it to us, or sent twice.
fn init(call: &mut Call<'_>) -> End {
    let acls = call.session.lane.vfs.character().acls;
    if let Some(params) = init::answer(call.args, acls, call.out)? {
        call.session.agree(params);
    }
    Ok(Outcome::Reply)
}
