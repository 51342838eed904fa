//! A session's open things by (index, generation).
//!
//! A place that is used again gets another generation, so that a handle that a client kept too long
//! is `EBADF` instead of somebody else's file. Bounded; places are kept and used again, last freed
//! first.

use polylane_base::{Errno, Result};

use polylane_ipc::stream::{STREAMED_HANDLE, STREAMED_PLACES};

use super::request::Handle;

/// Open things of one session.
#[derive(Debug)]
pub(super) struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    limit: u32,
}

#[derive(Debug)]
struct Place<T> {
    /// Of the present use, or of the next one while empty; never 0.
    generation: u32,
    value: Option<T>,
}

impl<T> Table<T> {
    /// An empty table for at most `limit` things.
    pub(super) fn new(limit: u32) -> Self {
        Table { places: Vec::new(), free: Vec::new(), limit }
    }

    /// Stores `value`. `EMFILE` when the table is full; the value is dropped then.
    pub(super) fn insert(&mut self, value: T) -> Result<Handle> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow()?,
        };
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        Ok(Handle { index, generation: place.generation })
    }

    fn grow(&mut self) -> Result<u32> {
        let index = u32::try_from(self.places.len()).map_err(|_| Errno::EMFILE)?;
        if index >= self.limit {
            return Err(Errno::EMFILE);
        }
        self.places.push(Place { generation: 1, value: None });
        Ok(index)
    }

    /// The thing of that handle. `EBADF` when there is none.
    pub(super) fn get(&self, handle: Handle) -> Result<&T> {
        match self.places.get(handle.index as usize) {
            Some(place) if place.generation == handle.generation => place.value.as_ref(),
            _ => None,
        }
        .ok_or(Errno::EBADF)
    }

    /// The thing of that handle, to be changed. `EBADF` when there is none.
    pub(super) fn get_mut(&mut self, handle: Handle) -> Result<&mut T> {
        match self.places.get_mut(handle.index as usize) {
            Some(place) if place.generation == handle.generation => place.value.as_mut(),
            _ => None,
        }
        .ok_or(Errno::EBADF)
    }

    /// Takes the thing of that handle out. `EBADF` when there is none.
    pub(super) fn remove(&mut self, handle: Handle) -> Result<T> {
        self.get(handle)?;
        let place = &mut self.places[handle.index as usize];
        place.generation = place.generation.checked_add(1).unwrap_or(1);
        self.free.push(handle.index);
        place.value.take().ok_or(Errno::EBADF)
    }

    /// All that is in it.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.value.as_ref())
    }

    /// Takes everything out; the table accepts nothing any more.
    pub(super) fn close(&mut self) -> Vec<T> {
        self.limit = 0;
        self.free = Vec::new();
        std::mem::take(&mut self.places).into_iter().filter_map(|place| place.value).collect()
    }
}

/// Open things under handles that the client chose: marked by [`STREAMED_HANDLE`], with any
/// generation.
#[derive(Debug)]
pub(super) struct Chosen<T> {
    places: Vec<Option<(u32, T)>>,
    limit: usize,
}

impl<T> Default for Chosen<T> {
    fn default() -> Self {
        Chosen { places: Vec::new(), limit: STREAMED_PLACES as usize }
    }
}

impl<T> Chosen<T> {
    /// Stores `value`. `EBADF`: no handle to choose; `EBUSY`: the place is in use.
    pub(super) fn insert(&mut self, handle: Handle, value: T) -> Result<()> {
        let place = (handle.index & !STREAMED_HANDLE) as usize;
        if handle.index & STREAMED_HANDLE == 0 || place >= self.limit {
            return Err(Errno::EBADF);
        }
        if self.places.len() <= place {
            self.places.resize_with(place + 1, || None);
        }
        if self.places[place].is_some() {
            return Err(Errno::EBUSY);
        }
        self.places[place] = Some((handle.generation, value));
        Ok(())
    }

    /// All that is in it.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten().map(|(_, value)| value)
    }

    /// The thing of that handle. `EBADF` when there is none.
    pub(super) fn get(&self, handle: Handle) -> Result<&T> {
        match self.places.get((handle.index & !STREAMED_HANDLE) as usize) {
            Some(Some((generation, value))) if *generation == handle.generation => Ok(value),
            _ => Err(Errno::EBADF),
        }
    }

    /// The thing of that handle, to be changed. `EBADF` when there is none.
    pub(super) fn get_mut(&mut self, handle: Handle) -> Result<&mut T> {
        match self.places.get_mut((handle.index & !STREAMED_HANDLE) as usize) {
            Some(Some((generation, value))) if *generation == handle.generation => Ok(value),
            _ => Err(Errno::EBADF),
        }
    }

    /// Takes the thing of that handle out. `EBADF` when there is none.
    pub(super) fn remove(&mut self, handle: Handle) -> Result<T> {
        self.get(handle)?;
        let place = &mut self.places[(handle.index & !STREAMED_HANDLE) as usize];
        place.take().map(|(_, value)| value).ok_or(Errno::EBADF)
    }

    /// Takes everything out; the table accepts nothing any more.
    pub(super) fn close(&mut self) -> Vec<T> {
        self.limit = 0;
        let places = std::mem::take(&mut self.places);
        places.into_iter().flatten().map(|(_, value)| value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_handle_is_refused() {
        let mut table = Table::new(10);
        let first = table.insert('a').unwrap();
        assert_eq!(table.remove(first), Ok('a'));
        let second = table.insert('b').unwrap();
        assert_eq!(second.index, first.index);
        assert_eq!(table.get(first), Err(Errno::EBADF));
        assert_eq!(table.remove(first), Err(Errno::EBADF));
        assert_eq!(table.get(second), Ok(&'b'));
    }

    #[test]
    fn generation_zero_and_far_indices_are_refused() {
        let mut table = Table::new(10);
        table.insert(()).unwrap();
        for (index, generation) in [(0, 0), (0, 2), (1, 1), (u32::MAX, u32::MAX)] {
            assert_eq!(table.get(Handle { index, generation }), Err(Errno::EBADF));
        }
    }

    #[test]
    fn generations_skip_zero_when_they_wrap() {
        let mut table = Table::new(1);
        let handle = table.insert(()).unwrap();
        table.places[0].generation = u32::MAX;
        table.remove(Handle { generation: u32::MAX, ..handle }).unwrap();
        assert_eq!(table.insert(()).unwrap().generation, 1);
    }

    #[test]
    fn chosen_handles_are_checked_like_any() {
        let mut table = Chosen::default();
        let handle = |place: u32, generation| Handle { index: STREAMED_HANDLE | place, generation };
        assert_eq!(table.insert(Handle { index: 3, generation: 1 }, 'x'), Err(Errno::EBADF));
        assert_eq!(table.insert(handle(STREAMED_PLACES, 1), 'x'), Err(Errno::EBADF));
        table.insert(handle(7, 1), 'a').unwrap();
        assert_eq!(table.insert(handle(7, 2), 'b'), Err(Errno::EBUSY));
        assert_eq!(table.get(handle(7, 2)), Err(Errno::EBADF));
        assert_eq!(table.get(handle(6, 1)), Err(Errno::EBADF));
        assert_eq!(table.remove(handle(7, 1)), Ok('a'));
        assert_eq!(table.remove(handle(7, 1)), Err(Errno::EBADF));
        table.insert(handle(7, 2), 'b').unwrap();
        assert_eq!(table.close(), ['b']);
        assert_eq!(table.insert(handle(0, 1), 'c'), Err(Errno::EBADF));
    }

    #[test]
    fn the_limit_holds_and_close_is_final() {
        let mut table = Table::new(2);
        let (a, _) = (table.insert(1).unwrap(), table.insert(2).unwrap());
        assert_eq!(table.insert(3), Err(Errno::EMFILE));
        table.remove(a).unwrap();
        table.insert(4).unwrap();
        assert_eq!(table.close().len(), 2);
        assert_eq!(table.insert(5), Err(Errno::EMFILE));
        assert_eq!(table.get(a), Err(Errno::EBADF));
    }
}
