//! `epoll_ctl`: regular files and directories cannot be waited for. The kernel takes every file of
//! a FUSE mount for one that can.

use libc::{c_int, epoll_event};

use super::{answer, arg, hooks};
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::ops::file;
use crate::ops::state::STATE;

fn refuse(fd: c_int) -> Outcome<c_int> {
    // A descriptor that is good for paths only is as none.
    let usable = |flags| flags & libc::O_PATH == 0;
    match file::lane_of(&STATE, fd).is_some() && real::status_flags(fd).is_ok_and(usable) {
        true => Err(polylane_base::Errno::EPERM.into()),
        false => Err(Detour::Kernel),
    }
}

hooks! {
    /// `epoll_ctl`
    ["epoll_ctl"]
    fn epoll_ctl(epoll: c_int, change: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        answer!(
            {
                // What comes first in the kernel: the event is read, and both are open.
                let reads = change != libc::EPOLL_CTL_DEL && arg::is_nowhere(event);
                if reads || real::status_flags(epoll).is_err() {
                    return Err(Detour::Kernel);
                }
                refuse(fd)
            },
            real::epoll_ctl(epoll, change, fd, event)
        )
    }
}
