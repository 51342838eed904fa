//! In a service: the files of a union's upper are made whole, beside whatever else is done with the
//! lane. Who asks for it, and is told: `solidify`.

use polylane_base::sync::{Arc, thread};
use polylane_union::{Solid, Union};
use polylane_vfs::{FileSystem, OpCtx};

use crate::link::{FromService, Link};

/// Makes the files of the upper whole, beside whatever else is done with the lane,
/// and says so on `control`.
pub(crate) fn start(union: Option<Arc<Union>>, control: &Link) {
    let refuse = |why: String| {
        // Its end shows at its process.
        let _ = control.send(&FromService::Solid(Err(why)), &[]);
    };
    let Some(union) = union else { return refuse("has no lowers: it is whole".to_string()) };
    let control = match control.again() {
        Ok(control) => control,
        Err(error) => return refuse(error.to_string()),
    };
    let work = move || {
        let outcome = outcome(&union);
        let _ = control.send(&FromService::Solid(outcome), &[]);
    };
    if let Err(error) = thread::Builder::new().name("solidify".to_string()).spawn(work) {
        refuse(error.to_string());
    }
}

fn outcome(union: &Union) -> std::result::Result<u64, String> {
    let solid = union.solidify().map_err(|errno| errno.to_string())?;
    union.sync(&OpCtx::service()).map_err(|errno| errno.to_string())?;
    match solid {
        Solid { is_partial: true, .. } => {
            Err("names in it changed all the time: run it again".to_string())
        }
        Solid { files, .. } => Ok(files),
    }
}
