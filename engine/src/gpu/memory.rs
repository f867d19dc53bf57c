//! GPU memory: buffers and textures, taken at load and never per step.
//!
//! Never frees by hand: dropping does. Invariant: every allocation is checked against the device's limits before it is
//! asked for, and what the driver says of it comes back as an error with the numbers in it.

use firstlight_shaders::weights::{GROUP_COLUMNS, TEXTURE_ROW_LINES};
use firstlight_shaders::{Home, TexelFormat};

use super::Device;
use super::pipelines::texture_format;
use crate::error::DeviceError;

/// What a kernel's binding is given.
pub type Binding<'a> = wgpu::BindingResource<'a>;

/// A storage or uniform buffer, bound whole.
pub struct Buffer {
    pub(crate) wgpu: wgpu::Buffer,
}

/// A storage texture of lines of 32 texels, 64 side by side, with the view that kernels bind: weights, scales, keys, values.
pub struct LineTexture {
    texture: wgpu::Texture,
    view: wgpu::TextureView,
    texel_bytes: u32,
}

/// What a kernel binds.
pub enum Resource {
    /// A buffer.
    Buffer(Buffer),
    /// A texture.
    Texture(LineTexture),
}

impl Buffer {
    /// The whole buffer as a binding.
    pub fn binding(&self) -> Binding<'_> {
        self.wgpu.as_entire_binding()
    }
}

impl Buffer {
    /// The buffer from byte `offset` on, a multiple of 256, as a binding.
    pub fn binding_from(&self, offset: u64) -> Binding<'_> {
        wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: &self.wgpu, offset, size: None })
    }

    /// Bytes in it.
    pub fn bytes(&self) -> u64 {
        self.wgpu.size()
    }

    /// From byte `offset` on, as texels of one row.
    fn texels(&self, offset: u64) -> wgpu::TexelCopyBufferInfo<'_> {
        let layout = wgpu::TexelCopyBufferLayout { offset, bytes_per_row: None, rows_per_image: None };
        wgpu::TexelCopyBufferInfo { buffer: &self.wgpu, layout }
    }
}

impl Resource {
    /// The whole resource as a binding.
    pub fn binding(&self) -> Binding<'_> {
        match self {
            Self::Buffer(buffer) => buffer.binding(),
            Self::Texture(texture) => wgpu::BindingResource::TextureView(&texture.view),
        }
    }

    /// Bytes in it.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Buffer(buffer) => buffer.bytes(),
            Self::Texture(texture) => texture.bytes(),
        }
    }

    /// Adds a copy of `bytes` from byte `at` on to byte `to_at` of `to`; all are multiples of 16.
    pub(crate) fn copy_out(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        at: u64,
        (to, to_at): (&Buffer, u64),
        bytes: u64,
    ) {
        match self {
            Self::Buffer(from) => encoder.copy_buffer_to_buffer(&from.wgpu, at, &to.wgpu, to_at, bytes),
            Self::Texture(from) => from.pieces(at, bytes, |texels, size, done| {
                encoder.copy_texture_to_buffer(texels, to.texels(to_at + done), size);
            }),
        }
    }

    /// Adds a copy of `bytes` from byte `from_at` of `from` on to byte `at`; all are multiples of 16.
    pub(crate) fn copy_in(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        at: u64,
        (from, from_at): (&Buffer, u64),
        bytes: u64,
    ) {
        match self {
            Self::Buffer(to) => encoder.copy_buffer_to_buffer(&from.wgpu, from_at, &to.wgpu, at, bytes),
            Self::Texture(to) => to.pieces(at, bytes, |texels, size, done| {
                encoder.copy_buffer_to_texture(from.texels(from_at + done), texels, size);
            }),
        }
    }
}

impl LineTexture {
    /// Bytes in it.
    pub fn bytes(&self) -> u64 {
        u64::from(self.texture.width()) * u64::from(self.texture.height()) * u64::from(self.texel_bytes)
    }

    /// Cuts `bytes` from byte `at` on into pieces of one row each: the texels, their extent, and the bytes before them.
    fn pieces(
        &self,
        at: u64,
        bytes: u64,
        mut piece: impl FnMut(wgpu::TexelCopyTextureInfo<'_>, wgpu::Extent3d, u64),
    ) {
        let row_bytes = u64::from(self.texture.width() * self.texel_bytes);
        let mut done = 0;
        while done < bytes {
            let (row, in_row) = ((at + done) / row_bytes, (at + done) % row_bytes);
            let len = (bytes - done).min(row_bytes - in_row);
            let texel = |bytes: u64| (bytes / u64::from(self.texel_bytes)) as u32;
            let texels = self.from(texel(in_row), row as u32);
            piece(texels, wgpu::Extent3d { width: texel(len), height: 1, depth_or_array_layers: 1 }, done);
            done += len;
        }
    }

    fn from(&self, x: u32, y: u32) -> wgpu::TexelCopyTextureInfo<'_> {
        wgpu::TexelCopyTextureInfo {
            texture: &self.texture,
            mip_level: 0,
            origin: wgpu::Origin3d { x, y, z: 0 },
            aspect: wgpu::TextureAspect::All,
        }
    }

    /// Lines that fit into one texture of this device.
    pub fn max_lines(device: &Device) -> u64 {
        u64::from(device.facts().max_texture_side) * u64::from(TEXTURE_ROW_LINES)
    }

    /// Writes `bytes`, whole rows of 64 lines (the last one may be short), from `first_line` on.
    pub fn write(&self, device: &Device, first_line: u64, bytes: &[u8]) {
        let width = TEXTURE_ROW_LINES * GROUP_COLUMNS;
        let row_bytes = width * self.texel_bytes;
        let first_row = (first_line / u64::from(TEXTURE_ROW_LINES)) as u32;
        let whole = bytes.len() - bytes.len() % row_bytes as usize;
        let rows = whole as u32 / row_bytes;
        let copy = |row: u32, width: u32, height: u32, bytes: &[u8]| {
            device.queue.write_texture(
                self.from(0, row),
                bytes,
                wgpu::TexelCopyBufferLayout {
                    offset: 0,
                    bytes_per_row: Some(width * self.texel_bytes),
                    rows_per_image: None,
                },
                wgpu::Extent3d { width, height, depth_or_array_layers: 1 },
            );
        };
        if rows > 0 {
            copy(first_row, width, rows, &bytes[..whole]);
        }
        let rest = &bytes[whole..];
        if !rest.is_empty() {
            copy(first_row + rows, rest.len() as u32 / self.texel_bytes, 1, rest);
        }
    }
}

impl Device {
    /// A storage buffer of zeros. `what` names it in errors.
    pub async fn storage(&self, what: &str, bytes: u64) -> Result<Buffer, DeviceError> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
        self.check_size(what, bytes, self.facts().max_binding_bytes, "a storage binding")?;
        self.buffer(what, bytes, usage).await
    }

    /// `bytes` of zeros at `home`, in a texture as texels of `format`. `what` names them in errors.
    pub async fn at_home(
        &self,
        home: Home,
        format: TexelFormat,
        what: &str,
        bytes: u64,
    ) -> Result<Resource, DeviceError> {
        let line_bytes = u64::from(GROUP_COLUMNS * format.bytes());
        Ok(match home {
            Home::Buffer => Resource::Buffer(self.storage(what, bytes).await?),
            Home::Texture => {
                Resource::Texture(self.line_texture(what, format, bytes.div_ceil(line_bytes)).await?)
            }
        })
    }

    /// A storage buffer that holds `bytes`.
    pub async fn storage_with(&self, what: &str, bytes: &[u8]) -> Result<Buffer, DeviceError> {
        let buffer = self.storage(what, bytes.len() as u64).await?;
        self.queue.write_buffer(&buffer.wgpu, 0, bytes);
        Ok(buffer)
    }

    /// A uniform buffer that holds `bytes`.
    pub async fn uniform(&self, what: &str, bytes: &[u8]) -> Result<Buffer, DeviceError> {
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let buffer = self.buffer(what, (bytes.len() as u64).next_multiple_of(16), usage).await?;
        self.queue.write_buffer(&buffer.wgpu, 0, bytes);
        Ok(buffer)
    }

    /// A buffer that copies pass through and no kernel binds.
    pub async fn passing(&self, what: &str, bytes: u64) -> Result<Buffer, DeviceError> {
        self.buffer(what, bytes, wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST).await
    }

    /// A buffer that the host reads.
    pub async fn readback(&self, what: &str, bytes: u64) -> Result<Buffer, DeviceError> {
        self.buffer(what, bytes, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST).await
    }

    /// A texture of `lines` lines of zeros. `what` names it in errors.
    pub async fn line_texture(
        &self,
        what: &str,
        format: TexelFormat,
        lines: u64,
    ) -> Result<LineTexture, DeviceError> {
        let texel_bytes = format.bytes();
        let rows = lines.max(1).div_ceil(u64::from(TEXTURE_ROW_LINES));
        let row_bytes = u64::from(TEXTURE_ROW_LINES * GROUP_COLUMNS * texel_bytes);
        let bytes = rows * row_bytes;
        self.check_size(what, bytes, u64::from(self.facts().max_texture_side) * row_bytes, "a texture")?;
        let texture = self
            .scoped(|| {
                self.wgpu.create_texture(&wgpu::TextureDescriptor {
                    label: Some(what),
                    size: wgpu::Extent3d {
                        width: TEXTURE_ROW_LINES * GROUP_COLUMNS,
                        height: rows as u32,
                        depth_or_array_layers: 1,
                    },
                    mip_level_count: 1,
                    sample_count: 1,
                    dimension: wgpu::TextureDimension::D2,
                    format: texture_format(format),
                    usage: wgpu::TextureUsages::STORAGE_BINDING
                        | wgpu::TextureUsages::COPY_DST
                        | wgpu::TextureUsages::COPY_SRC,
                    view_formats: &[],
                })
            })
            .await
            .map_err(|e| out_of_memory(what, bytes, &e))?;
        let view = texture.create_view(&wgpu::TextureViewDescriptor::default());
        Ok(LineTexture { texture, view, texel_bytes })
    }

    async fn buffer(&self, what: &str, bytes: u64, usage: wgpu::BufferUsages) -> Result<Buffer, DeviceError> {
        // A binding of no bytes is invalid; 16 is the smallest that holds any element of ours.
        let size = bytes.max(16).next_multiple_of(4);
        self.check_size(what, size, self.facts().max_buffer_bytes, "a buffer")?;
        let descriptor = wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
        let buffer = self
            .scoped(|| self.wgpu.create_buffer(&descriptor))
            .await
            .map_err(|e| out_of_memory(what, size, &e))?;
        Ok(Buffer { wgpu: buffer })
    }

    fn check_size(&self, what: &str, needed: u64, limit: u64, of: &str) -> Result<(), DeviceError> {
        if needed <= limit {
            return Ok(());
        }
        Err(DeviceError::OutOfMemory {
            what: what.to_string(),
            needed_bytes: needed,
            reason: format!("the adapter's limit for {of} is {limit}"),
        })
    }
}

fn out_of_memory(what: &str, needed_bytes: u64, error: &wgpu::Error) -> DeviceError {
    DeviceError::OutOfMemory {
        what: what.to_string(),
        needed_bytes,
        reason: format!("the driver says: {error}"),
    }
}
