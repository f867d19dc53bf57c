//! Kernels without a GPU: what naga, the four shading languages, browsers and WebGPU's default limits say of each.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use firstlight_engine::gpu::{Device, DeviceOptions, KernelCache};
use firstlight_shaders::{BindingKind, Program, TexelFormat};
use firstlight_tests::lint;
use firstlight_tests::programs::{Subject, all_programs, all_subjects};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, GlobalVariable, ImageClass, Module, StorageAccess, StorageFormat, TypeInner};

/// Parses and validates, with no more than the program says it needs.
fn validate(wgsl: &str, subgroups: bool, f16: bool) -> (Module, ModuleInfo) {
    let module = match naga::front::wgsl::parse_str(wgsl) {
        Ok(module) => module,
        Err(e) => panic!("{}", e.emit_to_string(wgsl)),
    };
    // unpack2x16float is in every WGSL; naga wants a word for it.
    let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    capabilities.set(Capabilities::SUBGROUP, subgroups);
    capabilities.set(Capabilities::SHADER_FLOAT16, f16);
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
        .subgroup_operations(naga::valid::SubgroupOperationSet::all())
        .validate(&module);
    match info {
        Ok(info) => (module, info),
        Err(e) => panic!("{}", e.emit_to_string(wgsl)),
    }
}

/// Every program, read once for all tests.
static READ: LazyLock<Vec<(Subject, Module, ModuleInfo)>> = LazyLock::new(|| {
    let mut first = all_subjects();
    let second = first.split_off(first.len() / 2);
    let read = |half: Vec<Subject>| {
        let read = |subject: Subject| {
            let (module, info) =
                validate(&subject.program.wgsl, subject.program.subgroups, subject.program.f16());
            (subject, module, info)
        };
        half.into_iter().map(read).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| read(first));
        let second = read(second);
        let mut all = first.join().expect("every program is valid");
        all.extend(second);
        all
    })
});

fn for_all(check: impl Fn(&Subject, &Module, &ModuleInfo)) {
    for (subject, module, info) in READ.iter() {
        check(subject, module, info);
    }
}

#[test]
fn every_program_has_a_name_of_its_own() {
    let programs = all_programs();
    let names: BTreeSet<_> = programs.iter().map(|p| &p.name).collect();
    let texts: BTreeSet<_> = programs.iter().map(|p| &p.wgsl).collect();
    assert_eq!((names.len(), texts.len()), (programs.len(), programs.len()));
}

/// Variables of functions that are declared without a value, by file and line.
fn without_a_value(name: &str, wgsl: &str) -> Vec<String> {
    let is_bare = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("var ") && line.split("//").next().is_some_and(|code| !code.contains('='))
    };
    wgsl.lines().filter(is_bare).map(|line| format!("{name}: {}", line.trim())).collect()
}

#[test]
fn every_variable_of_a_function_says_how_it_begins() {
    // WGSL has it begin with zero at every turn of a loop. Chromium's CPU renderer leaves it as the turn before left it.
    for subject in all_subjects() {
        let bare = without_a_value(&subject.program.name, &subject.program.wgsl);
        assert_eq!(bare, Vec::<String>::new());
    }
    let bare = without_a_value("x", "var<workgroup> w: f32;\n  var a = 1; // var\n  var sum: f32; // = 0\n");
    assert_eq!(bare, ["x: var sum: f32; // = 0"]);
}

/// What the text says of a binding.
fn kind(module: &Module, global: &GlobalVariable) -> BindingKind {
    match (global.space, &module.types[global.ty].inner) {
        (AddressSpace::Uniform, _) => BindingKind::Uniform,
        (AddressSpace::Storage { access }, _) if access.contains(StorageAccess::STORE) => {
            BindingKind::ReadWrite
        }
        (AddressSpace::Storage { .. }, _) => BindingKind::Read,
        (_, &TypeInner::Image { class: ImageClass::Storage { format, access }, .. }) => {
            let texel = match format {
                StorageFormat::R32Uint => TexelFormat::R32,
                StorageFormat::Rg32Uint => TexelFormat::Rg32,
                StorageFormat::Rgba32Uint => TexelFormat::Rgba32,
                other => panic!("{other:?} is no texel of ours"),
            };
            match access {
                StorageAccess::LOAD => BindingKind::ReadTexture(texel),
                StorageAccess::STORE => BindingKind::WriteTexture(texel),
                other => panic!("a texture is read or written, not {other:?}"),
            }
        }
        (space, _) => panic!("nothing of ours is bound in {space:?}"),
    }
}

#[test]
fn descriptors_say_what_the_text_says() {
    for_all(|subject, module, _| {
        let Program { name, bindings, .. } = &subject.program;
        let mut found: Vec<_> = module
            .global_variables
            .iter()
            .filter_map(|(_, global)| {
                let at = global.binding?;
                assert_eq!(at.group, 0, "{name}: one bind group");
                Some((at.binding, kind(module, global)))
            })
            .collect();
        found.sort_by_key(|&(binding, _)| binding);
        let described: Vec<_> = (0..).zip(bindings.iter().copied()).collect();
        assert_eq!(found, described, "{name}");

        // What a binding holds, alone or as an array; other structs never leave the kernel.
        let bound = module.global_variables.iter().filter(|(_, global)| global.binding.is_some());
        let held = bound.map(|(_, global)| match module.types[global.ty].inner {
            TypeInner::Array { base, .. } => base,
            _ => global.ty,
        });
        let structs = held.collect::<BTreeSet<_>>().into_iter().filter_map(|ty| {
            match (&module.types[ty].name, &module.types[ty].inner) {
                (Some(name), TypeInner::Struct { members, span }) => Some((name.as_str(), members, *span)),
                _ => None,
            }
        });
        let mut checked = 0;
        for (struct_name, members, span) in structs {
            let Some((_, rust, size)) = subject.structs.iter().find(|(name, ..)| *name == struct_name) else {
                panic!("{name}: the Rust side knows no {struct_name}");
            };
            let members: Vec<_> =
                members.iter().map(|m| (m.name.as_deref().unwrap_or(""), m.offset)).collect();
            assert_eq!((members.as_slice(), span as usize), (*rust, *size), "{name}: {struct_name}");
            checked += 1;
        }
        assert_eq!(checked, subject.structs.len(), "{name}: every struct is in the text");
    });
}

#[test]
fn default_limits_are_kept() {
    for_all(|subject, module, _| {
        let Program { name, bindings, .. } = &subject.program;
        let count = |wanted: fn(&BindingKind) -> bool| bindings.iter().filter(|&b| wanted(b)).count();
        // This one is chosen only where a device has them, which a test of the choice holds it to.
        let (buffers, textures) = if name.contains("/rope_kv/") { (10, 5) } else { (8, 4) };
        assert!(count(|b| matches!(b, BindingKind::Read | BindingKind::ReadWrite)) <= buffers, "{name}");
        let is_texture =
            |b: &BindingKind| matches!(b, BindingKind::ReadTexture(_) | BindingKind::WriteTexture(_));
        assert!(count(is_texture) <= textures, "{name}");
        let workgroup_bytes: u32 = module
            .global_variables
            .iter()
            .filter(|(_, global)| global.space == AddressSpace::WorkGroup)
            .map(|(_, global)| module.types[global.ty].inner.size(module.to_ctx()))
            .sum();
        assert!(workgroup_bytes <= 16 << 10, "{name}: {workgroup_bytes} bytes of workgroup memory");
        let [entry] = module.entry_points.as_slice() else { panic!("{name}: one entry point") };
        assert_eq!(entry.name, "main", "{name}");
        assert!(entry.workgroup_size.iter().product::<u32>() <= 256, "{name}: {:?}", entry.workgroup_size);
    });
}

/// Whether some line of code has a subgroup operation.
fn calls_subgroups(wgsl: &str) -> bool {
    let calls = |code: &str| code.contains("subgroup") || code.contains("quadBroadcast(");
    wgsl.lines().any(|line| line.split("//").next().is_some_and(calls))
}

#[test]
fn browsers_rules_are_kept() {
    for_all(|subject, module, info| {
        assert_eq!(lint::findings(module, info), BTreeSet::new(), "{}", subject.program.name);
        assert_eq!(calls_subgroups(&subject.program.wgsl), subject.program.subgroups);
    });
}

fn check_lint(body: &str, expected: &[&str]) {
    let wgsl = format!(
        "
        var<workgroup> shared_sum: u32;
        @group(0) @binding(0) var<storage, read> known: array<u32>;
        @group(0) @binding(1) var<storage, read_write> written: array<u32>;
        fn meet(which: u32) {{
            if (which == 0u) {{ workgroupBarrier(); }}
        }}
        fn pick(which: u32) -> u32 {{
            switch which {{ case 0u: {{ return subgroupBroadcast(7u, 0u); }} default: {{ return 0u; }} }}
        }}
        @compute @workgroup_size(64)
        fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
            {body}
        }}"
    );
    let (module, info) = validate(&wgsl, true, false);
    let expected = expected.iter().map(|s| s.to_string()).collect::<BTreeSet<_>>();
    assert_eq!(lint::findings(&module, &info), expected, "{body}");
}

#[test]
fn the_lint_finds_what_it_is_for() {
    let barrier = "main: a barrier that some threads may not reach";
    let in_meet = "meet: a barrier that some threads may not reach";
    let in_pick = "pick: a subgroup operation that some threads may not reach";
    check_lint("workgroupBarrier();", &[]);
    check_lint("if (thread < 3u) { workgroupBarrier(); }", &[barrier]);
    check_lint("if (group.x < 3u) { workgroupBarrier(); }", &[]);
    check_lint("if (known[group.x] < 3u) { workgroupBarrier(); }", &[]);
    check_lint("if (known[thread] < 3u) { workgroupBarrier(); }", &[barrier]);
    check_lint("if (written[0] < 3u) { workgroupBarrier(); }", &[barrier]);
    check_lint("if (shared_sum < 3u) { workgroupBarrier(); }", &[barrier]);
    check_lint("if (workgroupUniformLoad(&shared_sum) < 3u) { workgroupBarrier(); }", &[]);
    check_lint("if (thread < 3u) { return; } workgroupBarrier();", &[barrier]);
    check_lint("var v = 0u; if (thread < 3u) { v = 1u; } if (v == 1u) { workgroupBarrier(); }", &[barrier]);
    check_lint("for (var i = 0u; i < group.x; i++) { workgroupBarrier(); }", &[]);
    check_lint("for (var i = 0u; i < thread; i++) { workgroupBarrier(); }", &[barrier]);
    check_lint("for (var i = thread; i < 64u; i += 8u) { workgroupBarrier(); }", &[barrier]);
    check_lint(
        "for (var i = 0u; i < 8u; i++) { workgroupBarrier(); if (thread == i) { break; } }",
        &[barrier],
    );
    check_lint("for (var i = thread; i < 64u; i++) { written[i] = 0u; } workgroupBarrier();", &[]);
    check_lint("meet(group.x);", &[]);
    check_lint("meet(thread);", &[in_meet]);
    check_lint("if (thread == 1u) { meet(0u); }", &[in_meet]);
    check_lint("written[thread] = pick(0u);", &[]);
    check_lint("written[thread] = pick(thread);", &[in_pick]);
    check_lint("loop { if (group.x == 0u) { break; } }", &[]);
    check_lint("loop { written[0] = 0u; }", &["main: has a loop without a condition"]);
    let by_index = ["main: stores to a vector's component by a run-time index"];
    check_lint("var v = vec4<u32>(); v[thread & 3u] = 1u; written[0] = v.x;", &by_index);
    check_lint("var v = vec4<u32>(); v[2] = 1u; written[0] = v[thread & 3u];", &[]);
    check_lint("var v: array<u32, 4>; v[thread & 3u] = 1u; written[0] = v[0];", &[]);
}

fn hlsl(module: &Module, info: &ModuleInfo, f16: bool) -> Result<String, String> {
    use naga::back::hlsl::ShaderModel;
    // Halves came with 6.2.
    let shader_model = if f16 { ShaderModel::V6_2 } else { ShaderModel::V6_0 };
    let options = naga::back::hlsl::Options { shader_model, ..Default::default() };
    let mut text = String::new();
    naga::back::hlsl::Writer::new(&mut text, &options, &Default::default())
        .write(module, info, None)
        .map_err(|e| e.to_string())?;
    Ok(text)
}

fn msl(module: &Module, info: &ModuleInfo) -> Result<String, String> {
    let options = naga::back::msl::Options { lang_version: (2, 3), ..Default::default() };
    naga::back::msl::write_string(module, info, &options, &Default::default())
        .map(|(text, _)| text)
        .map_err(|e| e.to_string())
}

fn glsl(module: &Module, info: &ModuleInfo) -> Result<String, String> {
    let options =
        naga::back::glsl::Options { version: naga::back::glsl::Version::new_gles(320), ..Default::default() };
    let pipeline = naga::back::glsl::PipelineOptions {
        shader_stage: naga::ShaderStage::Compute,
        entry_point: "main".into(),
        multiview: None,
    };
    let mut text = String::new();
    naga::back::glsl::Writer::new(&mut text, module, info, &options, &pipeline, Default::default())
        .and_then(|mut writer| writer.write())
        .map_err(|e| e.to_string())?;
    Ok(text)
}

#[test]
fn every_language_can_say_it() {
    for_all(|subject, module, info| {
        let (name, f16) = (&subject.program.name, subject.program.f16());
        let mut texts = vec![("HLSL", hlsl(module, info, f16)), ("MSL", msl(module, info))];
        if !f16 {
            // OpenGL has no halves, and no adapter of it says that it had.
            texts.push(("GLSL", glsl(module, info)));
        }
        for (language, text) in texts {
            match text {
                Ok(text) => assert!(text.contains("main"), "{name}: {language}"),
                Err(e) => panic!("{name}: {language}: {e}"),
            }
        }
    });
}

#[test]
fn every_pipeline_fits_its_explicit_layout() {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backend_options.noop = wgpu::NoopBackendOptions { enable: true, ..Default::default() };
    descriptor.backends = wgpu::Backends::NOOP;
    let instance = wgpu::Instance::new(descriptor);
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::NOOP));
    let adapter = adapters.first().expect("the noop back end always has an adapter");
    let open = |default_limits| {
        pollster::block_on(Device::open(adapter, 0, DeviceOptions { default_limits })).expect("a device")
    };
    let devices = [open(false), open(true)];
    let mut caches = [KernelCache::default(), KernelCache::default()];
    for program in all_programs() {
        // Default limits come without subgroups and halves.
        let i = usize::from(!program.subgroups && !program.f16());
        let made = pollster::block_on(caches[i].get(&devices[i], program.clone()));
        assert_eq!(made.err(), None, "{}", program.name);
        assert_eq!(devices[i].take_failure(), None, "{}", program.name);
    }
}
