//! Libraries that are opened by their names at run time, and their functions.
#![expect(unsafe_code, reason = "UNSAFETY: functions of a C library, found by name")]

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// What of a library is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Missing {
    /// The library of this name; the loader's words.
    Library(&'static str, String),
    /// A function of it: it is too old.
    Call(&'static str, &'static str),
}

/// Opens a library.
pub(super) fn open(name: &'static str) -> Result<Library, Missing> {
    // SAFETY: initialisers of Ceph's libraries and of what they need have no contract that a caller
    // could break; a library is never unloaded while its functions are used, since they lie in one
    // object with it.
    let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
    library.map_err(|error| Missing::Library(name, error.to_string()))
}

/// A structure of a library's functions, by their declarations.
macro_rules! library {
    (
        $calls:ident of $library:ident;
        $(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*
    ) => {
        /// The functions of the library that are used.
        pub(super) struct $calls {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
            _library: ::libloading::os::unix::Library,
        }

        impl $calls {
            pub(super) fn load() -> Result<$calls, $crate::ffi::library::Missing> {
                let library = $crate::ffi::library::open($library)?;
                Ok($calls {
                    $($name: {
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the type is the one that the library's header declares.
                        match unsafe { library.get(name) } {
                            Ok(symbol) => *symbol,
                            Err(_) => {
                                let name = stringify!($name);
                                return Err($crate::ffi::library::Missing::Call($library, name));
                            }
                        }
                    },)*
                    _library: library,
                })
            }
        }
    };
}

pub(super) use library;
