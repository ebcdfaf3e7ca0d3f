/* interpose.c: the ways to a driver function. A direct link finds our exports; dlsym and dlvsym are ours; so are both
 * forms of cuGetProcAddress. Each asks the real one first, with the caller's own arguments, and swaps only the address.
 *
 * A look-up of any other name is jumped to glibc's function with the caller's return address in place, since dlsym
 * finds out from it who asks (RTLD_NEXT). Nothing here allocates, locks, logs or starts anything.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <sys/auxv.h>

#include "hooks.h"

typedef void *dlsym_function(void *handle, const char *name);
typedef void *dlvsym_function(void *handle, const char *name, const char *version);

static dlsym_function *_Atomic libc_dlsym;
static dlvsym_function *_Atomic libc_dlvsym;

struct library {
	const ElfW(Sym) * symbols;
	const char *names;
	const uint32_t *gnu_hash;
};

/* Our own, since a look-up may come before anything else works: from a sanitizer's start, with strcmp not there yet. */
static bool text_begins(const char *text, const char *start)
{
	for (; *start != '\0'; text++, start++)
		if (*text != *start)
			return false;
	return true;
}

static bool text_equals(const char *a, const char *b)
{
	for (; *a != '\0' && *a == *b; a++, b++)
		;
	return *a == *b;
}

static const char *file_name(const char *path)
{
	const char *name = path;

	for (; *path != '\0'; path++)
		if (*path == '/')
			name = path + 1;
	return name;
}

static uintptr_t dynamic_address(uintptr_t base, uintptr_t value)
{
	return value >= base ? value : base + value; /* glibc has relocated it already, others have not */
}

static bool library_read(uintptr_t base, const ElfW(Dyn) * dynamic, struct library *library)
{
	*library = (struct library){0};
	for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
		const void *at = (const void *)dynamic_address(base, dynamic->d_un.d_ptr);

		if (dynamic->d_tag == DT_SYMTAB)
			library->symbols = at;
		else if (dynamic->d_tag == DT_STRTAB)
			library->names = at;
		else if (dynamic->d_tag == DT_GNU_HASH)
			library->gnu_hash = at;
	}
	return library->symbols != NULL && library->names != NULL && library->gnu_hash != NULL;
}

static uint32_t gnu_hash(const char *name)
{
	uint32_t hash = 5381;

	for (; *name != '\0'; name++)
		hash = hash * 33 + (unsigned char)*name;
	return hash;
}

static const ElfW(Sym) * library_find(const struct library *library, const char *name)
{
	const uint32_t buckets = library->gnu_hash[0], first = library->gnu_hash[1], words = library->gnu_hash[2];
	const uint32_t *bucket = library->gnu_hash + 4 + words * (sizeof(ElfW(Addr)) / 4);
	const uint32_t *chain = bucket + buckets;
	const uint32_t hash = gnu_hash(name);

	for (uint32_t i = bucket[hash % buckets]; i >= first; i++) {
		const ElfW(Sym) *symbol = &library->symbols[i];

		if ((chain[i - first] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
			text_equals(library->names + symbol->st_name, name))
			return symbol;
		if (chain[i - first] & 1)
			break;
	}
	return NULL;
}

/* Take dlsym and dlvsym from a library, if it is libc.so.6, or libdl.so.2 where they are still there. */
static bool take_from(uintptr_t base, const char *path, const ElfW(Dyn) * dynamic)
{
	const char *file = path != NULL ? file_name(path) : "";
	const ElfW(Sym) * dlsym_symbol, *dlvsym_symbol;
	struct library library;

	if (!text_begins(file, "libc.so") && !text_begins(file, "libdl.so") && !text_begins(file, "libc-") &&
		!text_begins(file, "libdl-"))
		return false;
	if (!library_read(base, dynamic, &library))
		return false;
	dlsym_symbol = library_find(&library, "dlsym");
	dlvsym_symbol = library_find(&library, "dlvsym");
	if (dlsym_symbol == NULL || dlvsym_symbol == NULL)
		return false;
	atomic_store(&libc_dlvsym, (dlvsym_function *)(base + dlvsym_symbol->st_value));
	atomic_store(&libc_dlsym, (dlsym_function *)(base + dlsym_symbol->st_value));
	return true;
}

static const ElfW(Dyn) * dynamic_of(uintptr_t base, const ElfW(Phdr) * headers, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (headers[i].p_type == PT_DYNAMIC)
			return (const void *)(base + headers[i].p_vaddr);
	return NULL;
}

/* The loader's list of libraries, which a debugger reads too: from the program's own headers, without a call. */
static const struct link_map *loaded_libraries(void)
{
	const ElfW(Phdr) *headers = (const void *)getauxval(AT_PHDR);
	const size_t count = getauxval(AT_PHNUM);
	const ElfW(Dyn) * dynamic;
	uintptr_t base = 0;

	for (size_t i = 0; i < count; i++)
		if (headers[i].p_type == PT_PHDR)
			base = (uintptr_t)headers - headers[i].p_vaddr;
	for (dynamic = dynamic_of(base, headers, count); dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++)
		if (dynamic->d_tag == DT_DEBUG && dynamic->d_un.d_ptr != 0)
			return ((const struct r_debug *)dynamic->d_un.d_ptr)->r_map;
	return NULL;
}

static int take_from_headers(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)size;
	(void)unused;
	return take_from(
		info->dlpi_addr, info->dlpi_name, dynamic_of(info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum));
}

static bool find_in_libc(void)
{
	for (const struct link_map *library = loaded_libraries(); library != NULL; library = library->l_next)
		if (take_from(library->l_addr, library->l_name, library->l_ld))
			return true;
	return dl_iterate_phdr(take_from_headers, NULL) != 0; /* a program linked without the debugger's entry */
}

static void *not_found(void)
{
	return NULL;
}

static dlsym_function *find_dlsym(void)
{
	if (atomic_load(&libc_dlsym) == NULL && !find_in_libc())
		return (dlsym_function *)(void *)not_found;
	return atomic_load(&libc_dlsym);
}

void *real_dlsym(void *handle, const char *name)
{
	return find_dlsym()(handle, name);
}

/* Whether a name is the driver's or NVML's: "cu" or "nvml" and a capital letter. Not cublas, not curl. */
static bool is_driver_name(const char *name)
{
	if (name == NULL)
		return false;
	if (name[0] == 'c' && name[1] == 'u')
		return name[2] >= 'A' && name[2] <= 'Z';
	return text_begins(name, "nvml") && name[4] >= 'A' && name[4] <= 'Z';
}

static void *dlsym_driver_name(void *handle, const char *name)
{
	void *address = find_dlsym()(handle, name);

	return address == NULL ? NULL : hooks_for_symbol(name, address);
}

static void *dlvsym_driver_name(void *handle, const char *name, const char *version)
{
	void *address = find_dlsym() != NULL && atomic_load(&libc_dlvsym) != NULL
				? atomic_load(&libc_dlvsym)(handle, name, version)
				: NULL;

	return address == NULL ? NULL : hooks_for_symbol(name, address);
}

/* Which function a dlsym of `name` goes on in. For RTLD_NEXT, what is next to us is what counts, if it is the driver's.
 */
__attribute__((used)) static void *dlsym_target(void *handle, const char *name)
{
	if (!is_driver_name(name))
		return (void *)find_dlsym();
	if (handle == RTLD_NEXT && dlsym_driver_name(handle, name) == real_dlsym(handle, name))
		return (void *)find_dlsym();
	return (void *)dlsym_driver_name;
}

__attribute__((used)) static void *dlvsym_target(void *handle, const char *name)
{
	(void)handle;
	if (is_driver_name(name))
		return (void *)dlvsym_driver_name;
	(void)find_dlsym();
	return atomic_load(&libc_dlvsym) != NULL ? (void *)atomic_load(&libc_dlvsym) : (void *)not_found;
}

/* The two exports: keep the three arguments, ask for the target, jump to it with the caller's stack as it was. */
#if defined(__x86_64__)
#define JUMP_TO(export, target)                                                                                        \
	__asm__(".text\n.globl " #export "\n.type " #export ", @function\n.balign 16\n" #export ":\n"                  \
		"\tendbr64\n\tpushq %rdi\n\tpushq %rsi\n\tpushq %rdx\n\tcall " #target "\n"                            \
		"\tpopq %rdx\n\tpopq %rsi\n\tpopq %rdi\n\tjmp *%rax\n.size " #export ", .-" #export "\n")
#elif defined(__aarch64__)
#define JUMP_TO(export, target)                                                                                        \
	__asm__(".text\n.globl " #export "\n.type " #export ", %function\n.balign 16\n" #export ":\n"                  \
		"\thint #34\n\tstp x29, x30, [sp, #-48]!\n\tmov x29, sp\n\tstp x0, x1, [sp, #16]\n"                    \
		"\tstr x2, [sp, #32]\n\tbl " #target "\n\tmov x16, x0\n\tldr x2, [sp, #32]\n"                          \
		"\tldp x0, x1, [sp, #16]\n\tldp x29, x30, [sp], #48\n\tbr x16\n.size " #export ", .-" #export "\n")
#else
#error "dlsym needs a jump for this architecture"
#endif

JUMP_TO(dlsym, dlsym_target);
JUMP_TO(dlvsym, dlvsym_target);

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
	CUresult result;

	REAL(cuGetProcAddress);
	result = driver.cuGetProcAddress(symbol, pfn, cudaVersion, flags);
	if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL && *pfn != NULL)
		*pfn = hooks_for_base(symbol, *pfn);
	return result;
}

CUresult cuGetProcAddress_v2(
	const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags, CUdriverProcAddressQueryResult *symbolStatus)
{
	CUresult result;

	REAL(cuGetProcAddress_v2);
	result = driver.cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
	if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL && *pfn != NULL)
		*pfn = hooks_for_base(symbol, *pfn);
	return result;
}
